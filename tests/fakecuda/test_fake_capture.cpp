// SPDX-License-Identifier: Apache-2.0
// A call that a capture into a graph does not allow spoils it, and says so, as cuda.h describes. Other calls do no
// harm.
#include <doctest/doctest.h>

#include <thread>

#include "tests/fakecuda/process.hpp"

using namespace fakecuda;

namespace {

constexpr int kGlobalMode = 0, kThreadLocalMode = 1;

struct CaptureStage {
  Calls cu = plain_calls();
  Stream captured = nullptr, other = nullptr;
  Event event = nullptr;
  Address at = 0;

  bool made(unsigned flags = kNonBlocking) {
    return with_context(cu) && cu.stream_create(&captured, flags) == kSuccess &&
           cu.stream_create(&other, kNonBlocking) == kSuccess && cu.event_create(&event, kDisableTiming) == kSuccess &&
           cu.mem_alloc(&at, 4096) == kSuccess;
  }
  bool begin(int mode = kGlobalMode) { return cu.begin_capture(captured, mode) == kSuccess; }
  int status() {
    int is = -1;
    return cu.stream_capturing(captured, &is) == kSuccess ? is : -1;
  }
  // The result of its end, with a graph or without.
  bool ends(Code code) {
    Graph graph = nullptr;
    const Code said = cu.end_capture(captured, &graph);
    return said == code && (graph != nullptr) == (code == kSuccess) &&
           (graph == nullptr || cu.graph_destroy(graph) == kSuccess) && status() == 0;
  }
  bool unmade() {
    return cu.mem_free(at) == kSuccess && cu.event_destroy(event) == kSuccess &&
           cu.stream_destroy(captured) == kSuccess && cu.stream_destroy(other) == kSuccess && without_context(cu);
  }
};

}  // namespace

TEST_CASE("fake: work in a captured stream is not done, and the capture ends with a graph") {
  CHECK(holds({}, [] {
          CaptureStage it;
          NEED(it.made() && it.cu.memset8_async(it.at, 1, 64, nullptr) == kSuccess);
          NEED(it.cu.stream_synchronize(nullptr) == kSuccess && it.status() == 0);
          NEED(it.begin() && it.status() == 1);
          NEED(it.cu.begin_capture(it.captured, kGlobalMode) == kIllegalState);
          NEED(it.cu.begin_capture(nullptr, kGlobalMode) == kCaptureUnsupported);
          NEED(it.cu.memset8_async(it.at, 7, 64, it.captured) == kSuccess);
          NEED(it.cu.stream_synchronize(it.other) == kSuccess);  // another stream is free
          NEED(it.status() == 1 && it.ends(kSuccess));
          unsigned char seen = 0;
          NEED(it.cu.copy_to_host(&seen, it.at, 1) == kSuccess && seen == 1);
          Graph none = nullptr;
          NEED(it.cu.end_capture(it.captured, &none) == kIllegalState);
          return it.unmade() ? 0 : 1;
        }) == 0);
}

TEST_CASE("fake: to look at a captured stream, its context or its events is refused, and spoils the capture") {
  CHECK(holds({}, [] {
          CaptureStage it;
          NEED(it.made());
          Context context = nullptr;
          NEED(it.cu.context_get(&context) == kSuccess);
          const std::function<Code()> looks[] = {
              [&] { return it.cu.stream_synchronize(it.captured); }, [&] { return it.cu.stream_query(it.captured); },
              [&] { return it.cu.context_synchronize(); }, [&] { return it.cu.context_record(context, it.event); }};
          for (const auto& look : looks) {
            NEED(it.begin(kCaptureRelaxed));
            NEED(look() == kCaptureUnsupported && it.status() == 2);
            NEED(it.cu.memset8_async(it.at, 1, 64, it.captured) == kCaptureInvalidated);
            NEED(it.ends(kCaptureInvalidated));
          }
          NEED(it.begin(kCaptureRelaxed) && it.cu.event_record(it.event, it.captured) == kSuccess);
          NEED(it.cu.event_query(it.event) == kCapturedEvent && it.status() == 2);
          NEED(it.ends(kCaptureInvalidated));
          NEED(it.cu.event_query(it.event) == kCapturedEvent);  // until it is recorded elsewhere
          NEED(it.cu.event_record(it.event, it.other) == kSuccess && it.cu.stream_synchronize(it.other) == kSuccess);
          NEED(it.cu.event_query(it.event) == kSuccess);
          return it.unmade() ? 0 : 1;
        }) == 0);
}

TEST_CASE("fake: the default stream may not be used while a blocking stream is captured, but asked about") {
  CHECK(holds({}, [] {
          CaptureStage it;
          NEED(it.made(0));
          int is = 0;
          NEED(it.begin(kCaptureRelaxed));
          NEED(it.cu.stream_capturing(nullptr, &is) == kCaptureImplicit && it.status() == 1);
          const std::function<Code()> uses[] = {[&] { return it.cu.memset8_async(it.at, 1, 64, nullptr); },
                                                [&] { return it.cu.stream_synchronize(nullptr); },
                                                [&] { return it.cu.stream_query(nullptr); }};
          for (const auto& use : uses) {
            NEED(use() == kCaptureImplicit && it.status() == 2);
            NEED(it.ends(kCaptureInvalidated) && it.begin(kCaptureRelaxed));
          }
          NEED(it.ends(kSuccess) && it.cu.memset8_async(it.at, 1, 64, nullptr) == kSuccess);
          NEED(it.cu.stream_synchronize(nullptr) == kSuccess);
          return it.unmade() ? 0 : 1;
        }) == 0);
}

TEST_CASE("fake: unsafe calls spoil captures of their thread, and global ones of others, but in a relaxed thread") {
  CHECK(holds({}, [] {
          CaptureStage it;
          NEED(it.made());
          const auto elsewhere = [&](int mode) {
            Code code = -1;
            std::thread([&] {
              if (it.cu.capture_mode(&mode) == kSuccess) code = it.cu.event_query(it.event);
            }).join();
            return code;
          };
          NEED(it.begin(kGlobalMode));
          NEED(elsewhere(kThreadLocalMode) == kSuccess && elsewhere(kCaptureRelaxed) == kSuccess && it.status() == 1);
          NEED(elsewhere(kGlobalMode) == kCaptureUnsupported && it.ends(kCaptureInvalidated));
          NEED(it.begin(kThreadLocalMode) && elsewhere(kGlobalMode) == kSuccess && it.status() == 1);
          Address more = 0;
          NEED(it.cu.mem_alloc(&more, 4096) == kCaptureUnsupported && it.ends(kCaptureInvalidated));
          NEED(it.begin(kThreadLocalMode));
          int mode = kCaptureRelaxed;
          NEED(it.cu.capture_mode(&mode) == kSuccess && mode == kGlobalMode);
          NEED(it.cu.mem_alloc(&more, 4096) == kSuccess && it.cu.mem_free(more) == kSuccess && it.status() == 1);
          NEED(it.cu.capture_mode(&mode) == kSuccess && mode == kCaptureRelaxed && it.ends(kSuccess));
          mode = 3;
          NEED(it.cu.capture_mode(&mode) == kInvalidValue);
          NEED(it.begin(kGlobalMode));
          Code wrong = 0;
          std::thread([&] {
            Graph none = nullptr;
            wrong = with_context(it.cu) ? it.cu.end_capture(it.captured, &none) : -1;
            if (!without_context(it.cu)) wrong = -2;
          }).join();
          NEED(wrong == kCaptureWrongThread && it.ends(kCaptureInvalidated));
          return it.unmade() ? 0 : 1;
        }) == 0);
}
