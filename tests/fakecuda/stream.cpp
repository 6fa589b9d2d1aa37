// SPDX-License-Identifier: Apache-2.0
// A thread for each queue that was ever used, detached: a process may end with work left, as with a real device.
#include "tests/fakecuda/stream.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>

namespace fakecuda {
namespace {

struct Queue {
  struct Operation {
    std::string what;
    Work work;
    std::vector<std::pair<std::shared_ptr<Queue>, std::uint64_t>> after;
  };
  CUctx_st* context = nullptr;
  std::uint64_t id = state().next_id++;
  bool blocking = false, started = false, closing = false;
  std::deque<Operation> waiting;
  std::uint64_t enqueued = 0, done = 0;
  std::condition_variable changed;  // of both numbers and of `closing`
};
using QueuePtr = std::shared_ptr<Queue>;

struct Streams {
  std::map<Stream, QueuePtr> made;                                             // cuStreamCreate
  std::map<const CUctx_st*, QueuePtr> defaults;                                // null and 1
  std::map<std::pair<const CUctx_st*, std::thread::id>, QueuePtr> of_threads;  // 2
};

Streams& streams() {
  static Streams* const all = new Streams;
  return *all;
}

void run(QueuePtr queue) {
  State& it = state();
  for (;;) {
    Lock lock(it.mutex);
    queue->changed.wait(lock, [&] { return !queue->waiting.empty() || queue->closing; });
    if (queue->waiting.empty()) return;
    Queue::Operation operation = std::move(queue->waiting.front());
    queue->waiting.pop_front();
    for (const auto& [other, ticket] : operation.after)
      other->changed.wait(lock, [&] { return other->done >= ticket || queue->context->sticky != 0; });
    const bool dead = queue->context->sticky != 0;
    lock.unlock();
    if (const long delay = it.delay_us.load(); delay > 0 && !dead)
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
    const Code code = dead ? kSuccess : operation.work();
    operation.work = nullptr;
    lock.lock();
    if (code != kSuccess && queue->context->sticky == 0) queue->context->sticky = code;
    ++queue->done;
    queue->changed.notify_all();
  }
}

QueuePtr default_queue(CUctx_st& context) {
  QueuePtr& queue = streams().defaults[&context];
  if (queue == nullptr) {
    queue = std::make_shared<Queue>();
    queue->context = &context;
  }
  return queue;
}

QueuePtr find(Stream stream) {
  const auto number = reinterpret_cast<std::uintptr_t>(stream);
  CUctx_st* context = current_context();
  if (number <= 2 && context == nullptr) return nullptr;
  if (number <= 1) return default_queue(*context);
  if (number == 2) {
    QueuePtr& queue = streams().of_threads[{context, std::this_thread::get_id()}];
    if (queue == nullptr) {
      queue = std::make_shared<Queue>();
      queue->context = context;
      queue->blocking = true;
    }
    return queue;
  }
  const auto found = streams().made.find(stream);
  return found == streams().made.end() ? nullptr : found->second;
}

std::vector<QueuePtr> queues_of(const CUctx_st& context) {
  std::vector<QueuePtr> all;
  const auto add = [&](const auto& map) {
    for (const auto& [key, queue] : map)
      if (queue->context == &context) all.push_back(queue);
  };
  add(streams().made);
  add(streams().defaults);
  add(streams().of_threads);
  return all;
}

void put(const QueuePtr& queue, const char* what, Work work) {
  Queue::Operation operation{what, std::move(work), {}};
  const auto follow = [&](const QueuePtr& other) {
    if (other->done < other->enqueued) operation.after.emplace_back(other, other->enqueued);
  };
  const QueuePtr null = default_queue(*queue->context);
  if (queue == null) {
    for (const QueuePtr& other : queues_of(*queue->context))
      if (other->blocking) follow(other);
  } else if (queue->blocking) {
    follow(null);
  }
  queue->waiting.push_back(std::move(operation));
  ++queue->enqueued;
  if (!queue->started) {
    queue->started = true;
    std::thread(run, queue).detach();
  }
  queue->changed.notify_all();
}

void wait(const QueuePtr& queue, std::uint64_t ticket, Lock& lock) {
  const auto over = std::chrono::steady_clock::now() + std::chrono::seconds(state().watchdog_s);
  while (queue->done < ticket) {
    queue->changed.wait_for(lock, std::chrono::seconds(1));
    if (queue->done >= ticket || std::chrono::steady_clock::now() < over) continue;
    std::fprintf(stderr, "fakecuda: a stream has hung for %ld s with %zu operations behind, the next is %s\n",
                 state().watchdog_s, queue->waiting.size(),
                 queue->waiting.empty() ? "none" : queue->waiting.front().what.c_str());
    std::abort();
  }
}

}  // namespace

Code enqueue(State&, Stream stream, const char* what, Work work, std::uint64_t* ticket) {
  const QueuePtr queue = find(stream);
  if (queue == nullptr) return kInvalidHandle;
  bool captured = false;
  if (const Code code = capture_takes(*facts_of(stream), &captured); code != kSuccess) return code;
  if (!captured) put(queue, what, std::move(work));
  if (ticket != nullptr) *ticket = queue->enqueued;
  return kSuccess;
}

Code wait_for_stream(State&, Stream stream, Lock& lock) {
  const QueuePtr queue = find(stream);
  if (queue == nullptr) return kInvalidHandle;
  if (const Code code = capture_forbids_looking(*facts_of(stream)); code != kSuccess) return code;
  wait(queue, queue->enqueued, lock);
  return queue->context->sticky;
}

Code wait_for_context(CUctx_st& context, Lock& lock) {
  for (const QueuePtr& queue : queues_of(context)) wait(queue, queue->enqueued, lock);
  return context.sticky;
}

Code query_stream(State&, Stream stream) {
  const QueuePtr queue = find(stream);
  if (queue == nullptr) return kInvalidHandle;
  if (const Code code = capture_forbids_looking(*facts_of(stream)); code != kSuccess) return code;
  return queue->done < queue->enqueued ? kNotReady : queue->context->sticky;
}

std::function<bool()> moment_of(const CUctx_st& context) {
  std::vector<std::pair<QueuePtr, std::uint64_t>> until;
  for (const QueuePtr& queue : queues_of(context))
    if (queue->done < queue->enqueued) until.emplace_back(queue, queue->enqueued);
  return [until = std::move(until)] {
    return std::ranges::all_of(until, [](const auto& one) { return one.first->done >= one.second; });
  };
}

std::optional<StreamFacts> facts_of(Stream stream) {
  const QueuePtr queue = find(stream);
  if (queue == nullptr) return std::nullopt;
  return StreamFacts{queue->id, queue->context, queue->blocking, queue == default_queue(*queue->context)};
}

Context context_of(Stream stream) {
  const QueuePtr queue = find(stream);
  return queue == nullptr ? nullptr : queue->context;
}

void forget_streams(const CUctx_st& context) {
  forget_captures(context);
  for (const QueuePtr& queue : queues_of(context)) {
    queue->closing = true;
    queue->changed.notify_all();
  }
  Streams& all = streams();
  state().streams -= static_cast<std::size_t>(
      std::erase_if(all.made, [&](const auto& entry) { return entry.second->context == &context; }));
  std::erase_if(all.defaults, [&](const auto& entry) { return entry.second->context == &context; });
  std::erase_if(all.of_threads, [&](const auto& entry) { return entry.second->context == &context; });
}

bool rest(const CUctx_st& context) {
  std::this_thread::sleep_for(std::chrono::microseconds(50));
  Lock lock(state().mutex);
  return context.sticky == 0;
}

Code run_now(State& it, Lock& lock, const char* what, Work work) {
  std::uint64_t ticket = 0;
  if (const Code code = capture_forbids_unsafe(); code != kSuccess) return code;
  if (const Code code = enqueue(it, nullptr, what, std::move(work), &ticket); code != kSuccess) return code;
  const QueuePtr queue = find(nullptr);
  wait(queue, ticket, lock);
  return queue->context->sticky;
}

}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API Code cuStreamCreate(Stream* stream, unsigned flags) {
  return enter("cuStreamCreate", Needs::context, [&](State& it, Lock&) -> Code {
    if (stream == nullptr || flags > kNonBlocking) return kInvalidValue;
    auto queue = std::make_shared<Queue>();
    queue->context = current_context();
    queue->blocking = (flags & kNonBlocking) == 0;
    *stream = reinterpret_cast<Stream>(0x5000 + 0x10 * it.next_id++);
    streams().made.emplace(*stream, std::move(queue));
    ++it.streams;
    return kSuccess;
  });
}

// As the real one: returns at once, what was enqueued is still done.
FAKECUDA_API Code cuStreamDestroy_v2(Stream stream) {
  return enter("cuStreamDestroy", Needs::driver, [&](State& it, Lock&) -> Code {
    const auto found = streams().made.find(stream);
    if (found == streams().made.end()) return kInvalidHandle;
    found->second->closing = true;
    found->second->changed.notify_all();
    streams().made.erase(found);
    --it.streams;
    return kSuccess;
  });
}

FAKECUDA_API Code cuStreamSynchronize(Stream stream) {
  return enter("cuStreamSynchronize", Needs::context,
               [&](State& it, Lock& lock) -> Code { return wait_for_stream(it, stream, lock); });
}

FAKECUDA_API Code cuStreamQuery(Stream stream) {
  return enter("cuStreamQuery", Needs::context, [&](State& it, Lock&) -> Code { return query_stream(it, stream); });
}

FAKECUDA_API Code cuStreamGetCtx(Stream stream, Context* context) {
  return enter("cuStreamGetCtx", Needs::driver, [&](State&, Lock&) -> Code {
    const Context found = context_of(stream);
    if (found == nullptr) return reinterpret_cast<std::uintptr_t>(stream) <= 2 ? kInvalidContext : kInvalidHandle;
    *context = found;
    return kSuccess;
  });
}

FAKECUDA_API Code cuStreamGetId(Stream stream, unsigned long long* id) {
  return enter("cuStreamGetId", Needs::driver, [&](State&, Lock&) -> Code {
    const QueuePtr queue = find(stream);
    if (queue == nullptr) return kInvalidHandle;
    *id = queue->id;
    return kSuccess;
  });
}

FAKECUDA_API Code cuLaunchHostFunc(Stream stream, void (*function)(void*), void* argument) {
  return enter("cuLaunchHostFunc", Needs::context, [&](State& it, Lock&) -> Code {
    return enqueue(it, stream, "cuLaunchHostFunc", [=] {
      function(argument);
      return kSuccess;
    });
  });
}
