// Items in order: by key, and where keys are equal by place, so that no two are equal.
struct rlx_item { u64 key; i64 at; };
RLX_INLINE bool rlx_before(rlx_item a, rlx_item b) { return a.key < b.key || (a.key == b.key && a.at < b.at); }

// Where item p of n goes when sorted runs of `width` are merged two by two: behind those of its own run, and of the other, that come before it.
RLX_INLINE i64 rlx_merged(const rlx_item *items, i64 n, i64 width, i64 p) {
  const i64 first = p / (2*width)*(2*width), middle = rlx_least(first + width, n), end = rlx_least(middle + width, n);
  const bool left = p < middle;
  i64 low = left ? middle : first, high = left ? end : middle;
  const i64 start = low, own = p - (left ? first : middle);
  const rlx_item item = items[p];
  while (low < high) {
    const i64 half = (low + high)/2;
    if (rlx_before(items[half], item)) low = half + 1; else high = half;
  }
  return first + own + low - start;
}
