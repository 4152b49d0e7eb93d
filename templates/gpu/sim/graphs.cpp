// Graphs: what a stream captured or what was added node by node, instantiated and launched again and again.
#include "runtime.h"

namespace {
std::map<void *, Executable> executables;

hipError_t find_executable(void *handle, Executable *out) {
    auto found = executables.find(handle);
    if (found == executables.end()) return fail(hipErrorInvalidHandle, "%p is no instantiated graph", handle);
    *out = found->second;
    return hipSuccess;
}

hipError_t instantiate(void **out, Graph *graph) {
    if (!graph) return fail(hipErrorInvalidValue, "no graph");
    Executable exec = std::make_shared<GraphExec>();
    for (auto &node : graph->nodes) {
        exec->place[node.get()] = exec->nodes.size();
        exec->nodes.push_back(*node);
    }
    executables[exec.get()] = exec;
    alive[GRAPH_EXECS]++;
    *out = exec.get();
    return hipSuccess;
}

// Every node is submitted by itself.  Each keeps what it needs, so that the graph may be destroyed meanwhile.
hipError_t launch(const GraphExec &exec, void *stream) {
    for (const Node &node : exec.nodes)
        if (hipError_t error = submit(stream, node)) return error;
    return hipSuccess;
}

hipError_t make_node(Node *out, const hipKernelNodeParams *p) {
    std::shared_ptr<Launch> made;
    if (hipError_t error = make_launch(&made, p->func, p->gridDim, p->blockDim, p->sharedMemBytes, p->kernelParams, p->extra)) return error;
    *out = kernel_node(made);
    return hipSuccess;
}
}  // namespace

API hipError_t hipGraphCreate(void **out, unsigned) {
    return enter([&] {
        *out = new Graph;
        alive[GRAPHS]++;
        return hipSuccess;
    });
}
API hipError_t hipGraphDestroy(void *handle) {
    return enter([&] {
        if (!handle) return fail(hipErrorInvalidValue, "no graph");
        delete (Graph *)handle;
        alive[GRAPHS]--;
        return hipSuccess;
    });
}
API hipError_t hipGraphGetNodes(void *handle, void **out, size_t *count) {
    return enter([&] {
        Graph *graph = (Graph *)handle;
        if (out)
            for (size_t i = 0; i < *count && i < graph->nodes.size(); i++) out[i] = graph->nodes[i].get();
        *count = graph->nodes.size();
        return hipSuccess;
    });
}
API hipError_t hipGraphNodeGetType(void *node, int *out) { return *out = ((Node *)node)->type, hipSuccess; }

// Nodes run in the order in which they were added, which no list of dependencies may contradict: they name earlier nodes only.
API hipError_t hipGraphAddKernelNode(void **out, void *handle, void *const *, size_t, const hipKernelNodeParams *p) {
    return enter([&] {
        auto node = std::make_shared<Node>();
        if (hipError_t error = make_node(node.get(), p)) return error;
        ((Graph *)handle)->nodes.push_back(node);
        *out = node.get();
        return hipSuccess;
    });
}
API hipError_t hipGraphKernelNodeGetParams(void *handle, hipKernelNodeParams *out) {
    return enter([&] {
        Node *node = (Node *)handle;
        if (!node->launch) return fail(hipErrorInvalidValue, "the node is no kernel");
        *out = parameters(*node->launch);
        return hipSuccess;
    });
}
API hipError_t hipGraphKernelNodeSetParams(void *node, const hipKernelNodeParams *p) {
    return enter([&] { return make_node((Node *)node, p); });
}

API hipError_t hipGraphInstantiate(void **out, void *graph, void **, char *, size_t) {
    return enter([&] { return instantiate(out, (Graph *)graph); });
}
API hipError_t hipGraphInstantiateWithFlags(void **out, void *graph, unsigned long long) {
    return enter([&] { return instantiate(out, (Graph *)graph); });
}
API hipError_t hipGraphUpload(void *handle, void *) {
    return enter([&] {
        Executable exec;
        return find_executable(handle, &exec);
    });
}
API hipError_t hipGraphLaunch(void *handle, void *stream) {
    return enter([&] {
        Executable exec;
        hipError_t error = find_executable(handle, &exec);
        return error ? error : launch(*exec, stream);
    });
}
API hipError_t hipGraphExecKernelNodeSetParams(void *handle, void *node, const hipKernelNodeParams *p) {
    return enter([&] {
        Executable exec;
        if (hipError_t error = find_executable(handle, &exec)) return error;
        auto found = exec->place.find((Node *)node);
        if (found == exec->place.end() || !exec->nodes[found->second].launch) return fail(hipErrorInvalidValue, "the node is no kernel of this graph");
        return make_node(&exec->nodes[found->second], p);
    });
}
API hipError_t hipGraphExecDestroy(void *handle) {
    return enter([&] {
        Executable exec;
        if (hipError_t error = find_executable(handle, &exec)) return error;
        executables.erase(handle);
        alive[GRAPH_EXECS]--;
        return hipSuccess;
    });
}
