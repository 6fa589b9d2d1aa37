// SPDX-License-Identifier: Apache-2.0
// Streams: queues that a thread works off, one operation after the other, so that what is wrong about order shows. The
// default stream waits for the blocking ones and they for it. A wait that never ends is ended by the watchdog, with the
// name of the operation.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tests/fakecuda/state.hpp"

namespace fakecuda {

// Runs on the stream's thread without the lock; a code other than 0 is a fault of the device.
using Work = std::function<Code()>;

// Looks at the stream that a call names: null and 1 the context's default one, 2 this thread's. With the lock held.
Code enqueue(State& it, Stream stream, const char* what, Work work, std::uint64_t* ticket = nullptr);
// Waits for all that is in the stream; gives the context's fault, if there is one. Lets the lock go meanwhile.
Code wait_for_stream(State& it, Stream stream, Lock& lock);
Code wait_for_context(CUctx_st& context, Lock& lock);
Code query_stream(State& it, Stream stream);
// All that is in the context's streams now, and later whether it is done; both with the lock held.
std::function<bool()> moment_of(const CUctx_st& context);
// Of a stream that a call names, special ones being the current context's; null: there is none. With the lock held.
Context context_of(Stream stream);
// The context ends: its streams finish what they have and go, its events are gone (events.cpp).
void forget_streams(const CUctx_st& context);
void forget_events(State& it, const CUctx_st& context);

// Captures into graphs (capture.cpp), all with the lock held. A call that does not go with one spoils it, and says why;
// what is put into a captured stream is never done, since nobody launches graphs here.
struct Capture;
struct StreamFacts {
  std::uint64_t id = 0;
  const CUctx_st* context = nullptr;
  bool blocking = false, legacy = false;
};
std::optional<StreamFacts> facts_of(Stream stream);
// Before anything is put into it. `captured`: it goes into a graph.
Code capture_takes(const StreamFacts& stream, bool* captured);
Code capture_forbids_looking(const StreamFacts& stream);               // at it, by query or synchronise
Code capture_forbids_context(const CUctx_st& context);                 // a call about all its streams
Code capture_forbids_unsafe();                                         // a call that no graph sees
std::shared_ptr<Capture> capture_of(const StreamFacts& stream);        // null: none
Code capture_forbids_event(const std::shared_ptr<Capture>& of_event);  // a question about it
void spoil_capture_of(const StreamFacts& stream);                      // a call about it has failed
void forget_captures(const CUctx_st& context);

// For work that waits: sleeps a little, false when the context has faulted or the stream's process ends.
bool rest(const CUctx_st& context);
// Enqueues and waits: the synchronous calls, which run on the default stream.
Code run_now(State& it, Lock& lock, const char* what, Work work);

}  // namespace fakecuda
