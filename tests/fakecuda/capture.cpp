// SPDX-License-Identifier: Apache-2.0
// Capturing streams into graphs, as far as it forbids others something: which calls do not go with a capture, what they
// answer and that they spoil it, all as cuStreamBeginCapture, cuThreadExchangeStreamCaptureMode and the programming
// guide say. Which calls are "potentially unsafe" they say by example only; here those are what allocates or frees at
// once, what registers host memory, what copies at once and what asks an event. Graphs are never launched, so what goes
// into one is forgotten. Streams are captured one by one: events bind none into the capture of another.
#include <thread>

#include "tests/fakecuda/stream.hpp"

namespace fakecuda {

struct Capture {
  int mode = 0;
  std::thread::id thread;
  bool over = false, spoilt = false;
};

namespace {

using CapturePtr = std::shared_ptr<Capture>;

struct Captured {
  CapturePtr capture;
  const CUctx_st* context = nullptr;
  bool blocking = false;
};

// By the stream's number.
std::map<std::uint64_t, Captured>& captured_streams() {
  static auto* const all = new std::map<std::uint64_t, Captured>;
  return *all;
}

constexpr int kGlobal = 0;
thread_local int mode_of_thread = kGlobal;

Code spoil(Capture& capture, Code code) {
  capture.spoilt = true;
  return code;
}

// Work in the default stream would be ordered with that of a captured one, which never happens.
Code implicit(const StreamFacts& stream, bool spoils) {
  Code code = kSuccess;
  if (!stream.legacy) return code;
  for (auto& [number, one] : captured_streams()) {
    if (one.context != stream.context || !one.blocking) continue;
    code = kCaptureImplicit;
    if (spoils) spoil(*one.capture, code);
  }
  return code;
}

}  // namespace

CapturePtr capture_of(const StreamFacts& stream) {
  const auto found = captured_streams().find(stream.id);
  return found == captured_streams().end() ? nullptr : found->second.capture;
}

void spoil_capture_of(const StreamFacts& stream) {
  if (const CapturePtr capture = capture_of(stream)) capture->spoilt = true;
}

Code capture_takes(const StreamFacts& stream, bool* captured) {
  const CapturePtr capture = capture_of(stream);
  *captured = capture != nullptr && !capture->spoilt;
  if (capture != nullptr) return capture->spoilt ? kCaptureInvalidated : kSuccess;
  return implicit(stream, true);
}

Code capture_forbids_looking(const StreamFacts& stream) {
  if (const CapturePtr capture = capture_of(stream))
    return capture->spoilt ? kCaptureInvalidated : spoil(*capture, kCaptureUnsupported);
  return implicit(stream, true);
}

Code capture_forbids_context(const CUctx_st& context) {
  Code code = kSuccess;
  for (auto& [number, one] : captured_streams())
    if (one.context == &context) code = spoil(*one.capture, kCaptureUnsupported);
  return code;
}

Code capture_forbids_unsafe() {
  Code code = kSuccess;
  if (mode_of_thread == kCaptureRelaxed) return code;
  for (auto& [number, one] : captured_streams()) {
    const Capture& capture = *one.capture;
    const bool own = capture.thread == std::this_thread::get_id() && capture.mode != kCaptureRelaxed;
    if (own || (mode_of_thread == kGlobal && capture.mode == kGlobal)) code = spoil(*one.capture, kCaptureUnsupported);
  }
  return code;
}

// Also later: whether such work is done nobody can say.
Code capture_forbids_event(const CapturePtr& of_event) {
  if (of_event != nullptr) return of_event->over ? kCapturedEvent : spoil(*of_event, kCapturedEvent);
  return capture_forbids_unsafe();
}

void forget_captures(const CUctx_st& context) {
  std::erase_if(captured_streams(), [&](const auto& entry) { return entry.second.context == &context; });
}

}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API Code cuStreamBeginCapture_v2(Stream stream, int mode) {
  return enter("cuStreamBeginCapture", Needs::context, [&](State&, Lock&) -> Code {
    const auto facts = facts_of(stream);
    if (!facts) return kInvalidHandle;
    if (mode < kGlobal || mode > kCaptureRelaxed) return kInvalidValue;
    if (facts->legacy) return kCaptureUnsupported;
    if (capture_of(*facts) != nullptr) return kIllegalState;
    auto capture = std::make_shared<Capture>();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    captured_streams()[facts->id] = {std::move(capture), facts->context, facts->blocking};
    return kSuccess;
  });
}

FAKECUDA_API Code cuStreamEndCapture(Stream stream, Graph* graph) {
  return enter("cuStreamEndCapture", Needs::context, [&](State& it, Lock&) -> Code {
    const auto facts = facts_of(stream);
    if (!facts) return kInvalidHandle;
    if (graph == nullptr) return kInvalidValue;
    *graph = nullptr;
    const CapturePtr capture = capture_of(*facts);
    if (capture == nullptr) return kIllegalState;
    if (capture->mode != kCaptureRelaxed && capture->thread != std::this_thread::get_id())
      return spoil(*capture, kCaptureWrongThread);
    capture->over = true;
    std::erase_if(captured_streams(), [&](const auto& entry) { return entry.second.capture == capture; });
    if (capture->spoilt) return kCaptureInvalidated;
    *graph = reinterpret_cast<Graph>(0xb000 + 0x10 * it.next_id++);
    ++it.graphs;
    return kSuccess;
  });
}

FAKECUDA_API Code cuGraphDestroy(Graph graph) {
  return enter("cuGraphDestroy", Needs::driver, [&](State& it, Lock&) -> Code {
    if (graph == nullptr || it.graphs == 0) return kInvalidValue;
    --it.graphs;
    return kSuccess;
  });
}

// Spoils nothing itself, also where it has no answer for the default stream.
FAKECUDA_API Code cuStreamIsCapturing(Stream stream, int* capturing) {
  return enter("cuStreamIsCapturing", Needs::context, [&](State&, Lock&) -> Code {
    const auto facts = facts_of(stream);
    if (!facts) return kInvalidHandle;
    const CapturePtr capture = capture_of(*facts);
    *capturing = capture == nullptr ? 0 : capture->spoilt ? 2 : 1;
    return implicit(*facts, false);
  });
}

FAKECUDA_API Code cuThreadExchangeStreamCaptureMode(int* mode) {
  return enter("cuThreadExchangeStreamCaptureMode", Needs::driver, [&](State&, Lock&) -> Code {
    if (mode == nullptr || *mode < kGlobal || *mode > kCaptureRelaxed) return kInvalidValue;
    std::swap(*mode, mode_of_thread);
    return kSuccess;
  });
}
