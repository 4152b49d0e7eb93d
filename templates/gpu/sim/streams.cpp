// Streams and events.  A lazy device runs nothing before somebody waits for it, so that a wait that is missing shows.
#include "runtime.h"

#include <chrono>

namespace {
struct Event {
    void *stream = nullptr;
    uint64_t order = 0;  // of the work that completes it; 0: never recorded
    bool done = true;
    double at = 0;       // milliseconds
};

Stream null_stream;
std::set<Stream *> streams;
std::map<void *, std::shared_ptr<Event>> events;
uint64_t last_order;

double now() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

hipError_t finish(Stream &stream, uint64_t until);

// What must run before the work of this number: a blocking stream and the null stream wait for one another's earlier work.
hipError_t finish_others(Stream &stream, uint64_t order) {
    if (&stream != &null_stream) return stream.blocking ? finish(null_stream, order - 1) : hipSuccess;
    for (Stream *other : streams)
        if (other->blocking)
            if (hipError_t error = finish(*other, order - 1)) return error;
    return hipSuccess;
}

void abandon_all() {
    null_stream.work.clear();
    for (Stream *s : streams) s->work.clear();
    for (auto &[handle, event] : events) event->done = true;
}

// Runs the stream's work in order, up to and including `until`.  After a failure nothing that waits would mean anything: it is dropped.
hipError_t finish(Stream &stream, uint64_t until) {
    while (!in_python && !stream.work.empty() && stream.work.front().order <= until) {
        Stream::Work work = std::move(stream.work.front());
        stream.work.pop_front();
        hipError_t error = finish_others(stream, work.order);
        if (!error) error = work.run();
        if (error) {
            abandon_all();
            return error;
        }
    }
    return hipSuccess;
}

hipError_t find_event(void *handle, std::shared_ptr<Event> *out) {
    auto found = events.find(handle);
    if (found == events.end()) return fail(hipErrorInvalidHandle, "%p is no event", handle);
    *out = found->second;
    return hipSuccess;
}

hipError_t create_stream(void **out, bool blocking) {
    if (hipError_t error = need_device()) return error;
    Stream *stream = new Stream;
    stream->blocking = blocking;
    streams.insert(stream);
    alive[STREAMS]++;
    *out = stream;
    return hipSuccess;
}

// Polling makes progress, one piece of work at a time, or a program that polls would never end.
hipError_t query(Stream &stream) {
    if (stream.work.empty()) return hipSuccess;
    hipError_t error = finish(stream, stream.work.front().order);
    return error ? error : hipErrorNotReady;
}

hipError_t finish_event(Event &event) {
    Stream *stream;
    if (event.done || find_stream(event.stream, &stream)) return hipSuccess;
    return finish(*stream, event.order);
}

hipError_t end_capture(Stream &stream, void **out) {
    if (!stream.capture) return fail(hipErrorStreamCaptureUnmatched, "the stream does not capture");
    std::unique_ptr<Capture> capture = std::move(stream.capture);
    *out = nullptr;
    if (capture->broken) return hipErrorStreamCaptureInvalidated;
    *out = capture->graph.release();
    alive[GRAPHS]++;
    return hipSuccess;
}
}  // namespace

hipError_t find_stream(void *handle, Stream **out) {
    const bool is_null = (uintptr_t)handle <= 2;  // hipStreamLegacy and hipStreamPerThread too
    *out = is_null ? &null_stream : (Stream *)handle;
    return is_null || streams.count(*out) ? hipSuccess : fail(hipErrorInvalidHandle, "%p is no stream", handle);
}

hipError_t submit(void *handle, Node node) {
    Stream *stream;
    if (hipError_t error = find_stream(handle, &stream)) return error;
    if (stream->capture) {
        stream->capture->graph->nodes.push_back(std::make_shared<Node>(std::move(node)));
        return hipSuccess;
    }
    if (hipError_t error = need_device()) return error;
    stream->work.push_back({++last_order, std::move(node.run)});
    return device.lazy ? hipSuccess : finish(*stream, last_order);
}

hipError_t finish_all() {
    hipError_t error = finish(null_stream, UINT64_MAX);
    for (Stream *s : streams) {
        hipError_t other = finish(*s, UINT64_MAX);
        if (!error) error = other;
    }
    hipError_t edges = overrun("something");
    return error ? error : edges;
}

hipError_t finish_null() {
    if (hipError_t error = finish(null_stream, UINT64_MAX)) return error;
    return finish_others(null_stream, UINT64_MAX);
}

hipError_t forbid_while_capturing(const char *what) {
    for (Stream *s : streams)
        if (s->capture && s->capture->forbids()) {
            s->capture->broken = true;
            return fail(hipErrorStreamCaptureUnsupported, "%s while a stream captures; the capture is void", what);
        }
    return hipSuccess;
}

// ---- streams
API hipError_t hipStreamCreate(void **out) {
    return enter([&] { return create_stream(out, true); });
}
API hipError_t hipStreamCreateWithFlags(void **out, unsigned flags) {
    return enter([&] { return create_stream(out, !(flags & hipStreamNonBlocking)); });
}
API hipError_t hipStreamCreateWithPriority(void **out, unsigned flags, int) { return hipStreamCreateWithFlags(out, flags); }

API hipError_t hipStreamDestroy(void *handle) {
    return enter([&] {
        Stream *stream;
        if (hipError_t error = find_stream(handle, &stream)) return error;
        if (stream == &null_stream) return fail(hipErrorInvalidHandle, "the null stream cannot be destroyed");
        hipError_t error = finish(*stream, UINT64_MAX);
        streams.erase(stream);
        delete stream;
        alive[STREAMS]--;
        return error;
    });
}

API hipError_t hipStreamSynchronize(void *handle) {
    return enter([&] {
        Stream *stream;
        if (hipError_t error = find_stream(handle, &stream)) return error;
        if (stream->capture) {
            stream->capture->broken = true;
            return fail(hipErrorStreamCaptureUnsupported, "hipStreamSynchronize of a stream that captures; the capture is void");
        }
        hipError_t error = stream == &null_stream ? finish_null() : finish(*stream, UINT64_MAX);
        hipError_t edges = overrun("something");
        return error ? error : edges;
    });
}
API hipError_t hipStreamQuery(void *handle) {
    return enter([&] {
        Stream *stream;
        hipError_t error = find_stream(handle, &stream);
        return error ? error : query(*stream);
    });
}
API hipError_t hipDeviceSynchronize() {
    return enter([&] {
        hipError_t error = forbid_while_capturing("hipDeviceSynchronize");
        return error ? error : finish_all();
    });
}

// ---- events
API hipError_t hipEventCreate(void **out) {
    return enter([&] {
        if (hipError_t error = need_device()) return error;
        auto event = std::make_shared<Event>();
        events[event.get()] = event;
        alive[EVENTS]++;
        *out = event.get();
        return hipSuccess;
    });
}
API hipError_t hipEventCreateWithFlags(void **out, unsigned) { return hipEventCreate(out); }

API hipError_t hipEventDestroy(void *handle) {
    return enter([&] {
        std::shared_ptr<Event> event;
        if (hipError_t error = find_event(handle, &event)) return error;
        events.erase(handle);  // work that will complete it still holds it
        alive[EVENTS]--;
        return hipSuccess;
    });
}

API hipError_t hipEventRecord(void *handle, void *on) {
    return enter([&] {
        std::shared_ptr<Event> event;
        Stream *stream;
        if (hipError_t error = find_event(handle, &event)) return error;
        if (hipError_t error = find_stream(on, &stream)) return error;
        if (!stream->capture) {
            event->stream = on;
            event->order = last_order + 1;
            event->done = false;
        }
        return submit(on, {hipGraphNodeTypeEventRecord, nullptr, [event] {
            event->done = true;
            event->at = now();
            return hipSuccess;
        }});
    });
}

API hipError_t hipStreamWaitEvent(void *handle, void *on, unsigned) {
    return enter([&] {
        std::shared_ptr<Event> event;
        Stream *stream;
        if (hipError_t error = find_event(on, &event)) return error;
        if (hipError_t error = find_stream(handle, &stream)) return error;
        if (stream->capture) {
            stream->capture->broken = true;
            return fail(hipErrorStreamCaptureUnsupported, "the simulated runtime captures one stream, which can wait for no other");
        }
        if (event->done) return hipSuccess;
        return submit(handle, {hipGraphNodeTypeWaitEvent, nullptr, [at = event->order, from = event->stream] {
            Stream *other;
            return find_stream(from, &other) ? hipSuccess : finish(*other, at);  // a stream that is gone has done its work
        }});
    });
}

API hipError_t hipEventSynchronize(void *handle) {
    return enter([&] {
        std::shared_ptr<Event> event;
        hipError_t error = find_event(handle, &event);
        return error ? error : finish_event(*event);
    });
}

API hipError_t hipEventQuery(void *handle) {
    return enter([&] {
        std::shared_ptr<Event> event;
        Stream *stream;
        if (hipError_t error = find_event(handle, &event)) return error;
        if (event->done || find_stream(event->stream, &stream)) return hipSuccess;
        return query(*stream);
    });
}

API hipError_t hipEventElapsedTime(float *milliseconds, void *from, void *to) {
    return enter([&] {
        std::shared_ptr<Event> a, b;
        if (hipError_t error = find_event(from, &a)) return error;
        if (hipError_t error = find_event(to, &b)) return error;
        if (a->at == 0 || b->at == 0) return fail(a->done && b->done ? hipErrorInvalidHandle : hipErrorNotReady, "an event that has not happened");
        *milliseconds = (float)(b->at - a->at);
        return hipSuccess;
    });
}

// ---- capture
API hipError_t hipStreamBeginCapture(void *handle, int mode) {
    return enter([&] {
        Stream *stream;
        if (hipError_t error = find_stream(handle, &stream)) return error;
        if (stream == &null_stream) return fail(hipErrorStreamCaptureUnsupported, "the null stream cannot capture");
        if (stream->capture) return fail(hipErrorInvalidValue, "the stream captures already");
        stream->capture.reset(new Capture{std::make_unique<Graph>(), (hipStreamCaptureMode)mode, false, std::this_thread::get_id()});
        return hipSuccess;
    });
}
API hipError_t hipStreamEndCapture(void *handle, void **out) {
    return enter([&] {
        Stream *stream;
        hipError_t error = find_stream(handle, &stream);
        return error ? error : end_capture(*stream, out);
    });
}
API hipError_t hipStreamIsCapturing(void *handle, int *out) {
    return enter([&] {
        Stream *stream;
        if (hipError_t error = find_stream(handle, &stream)) return error;
        *out = !stream->capture ? hipStreamCaptureStatusNone : stream->capture->broken ? hipStreamCaptureStatusInvalidated : hipStreamCaptureStatusActive;
        return hipSuccess;
    });
}
