"""For people who look inside: passes step by step, drawings, the op table, equality of graphs."""
