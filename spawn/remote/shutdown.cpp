// SPDX-License-Identifier: Apache-2.0
// See shutdown.hpp.
#include "spawn/remote/shutdown.hpp"

#include <iterator>
#include <utility>

#include "client/session/hurry.hpp"
#include "spawn/face/torch_words.hpp"

namespace shmb::remote {

namespace torch_words = shmbroker::torch_words;

using client::Deadline;

// Objects to destroy after the lock is released.
struct Shutdown::Remains {
  std::shared_ptr<Inbox> inbox;
  std::vector<std::shared_ptr<Value>> objects;  // of the values, also of those in a cycle, which nothing else would end
  std::vector<std::shared_ptr<Value>> values;
  std::vector<std::unique_ptr<Request>> requests;
  bool lost = false;  // the world is lost: no message to the broker
};

Shutdown::Ended Shutdown::run(const ShutdownRequest& wish) {
  Ended out;
  out.error = begin();
  if (out.error) return out;
  bool answers = true;  // the broker
  if (!wish.local) meet_all(wish, out, answers);
  if (life_.forked()) return out;  // a function that ran meanwhile did it, and returned in the child
  Remains remains;
  if (!close(remains)) return out;
  remains.requests.clear();
  remains.objects.clear();
  remains.values.clear();
  if (!remains.lost) {
    const client::Hurry hurry(!answers);
    const auto left = client::leave_world(*place_.session, place_.world, Deadline::after(0));
    answers = left || left.error().status != Status::deadline;
  }
  const client::Hurry hurry(!answers);
  remains.inbox.reset();  // its queues to all workers ask the broker one after the other
  return out;
}

// A lost world is left as well.
std::optional<Error> Shutdown::begin() {
  if (auto is_open = life_.open();
      !is_open && is_open.error().status != Status::session_lost && is_open.error().status != Status::group_ended)
    return is_open.error();
  const std::lock_guard lock(monitor_.mutex());
  if (!life_.begin_end()) return Error{Status::closed, 0, {}, "another thread shuts this worker down already"};
  return std::nullopt;
}

void Shutdown::meet_all(const ShutdownRequest& wish, Ended& out, bool& answers) {
  const Deadline deadline = Deadline::after(wish.timeout, kShutdownTimeout);
  out.error = meet(1, deadline);
  if (life_.forked()) return;
  {
    const std::lock_guard lock(monitor_.mutex());
    life_.leave();
  }
  if (!wish.keep_references) answers = references_.let_go_of_all();
  if (!out.error) out.error = meet(2, deadline);
  {
    const client::Hurry hurry(!answers);
    out.leaks = references_.count_leaks(Deadline::after(0), answers);
  }
  if (!out.error) out.error = meet(3, deadline);
  if (!life_.forked() && !out.error && out.leaks != 0 && wish.report_leaks)
    out.error = Error{Status::leaking, 0, {}, torch_words::leaking(out.leaks)};
}

// A callback may call somebody yet; one that shuts down itself is not waited for.
bool Shutdown::idle() const { return calls_.count() == 0 && server_.idle() && callbacks_.idle(); }

std::optional<Error> Shutdown::meet(std::uint64_t phase, Deadline deadline) {
  Lock lock(monitor_.mutex());
  meeting_.begin(phase);
  for (;;) {
    stepper_.catch_up(lock);
    if (life_.forked()) return Life::forked_error().error();
    if (life_.lost()) return *life_.lost();
    if (life_.closed()) return Error{Status::closed, 0, {}, "this worker was shut down by another thread"};
    const bool through = meeting_.over(phase) && idle();
    if (through && sender_.idle()) return std::nullopt;
    if (!through && idle() && meeting_.report_due()) {
      meeting_.report(sender_.requests(), server_.requests());
      continue;
    }
    if (deadline.passed())
      return Error{Status::deadline,
                   0,
                   {},
                   "the graceful shutdown passed its deadline, and this worker has left: " + why_late()};
    stepper_.step(lock, deadline, true);
  }
}

std::string Shutdown::why_late() const {
  std::string busy;
  if (!idle())
    busy = std::to_string(calls_.count()) + " calls of this worker and " +
           std::to_string(server_.running() + server_.backlog()) + " of others here are not through";
  if (const std::string missing = meeting_.missing(); !missing.empty()) busy += (busy.empty() ? "" : "; ") + missing;
  if (!busy.empty()) return busy;
  return roster_.where(roster_.leader(place_.rank)) + ", or another worker, has not shut down or is busy";
}

// Also what waits for a value is taken from it, because the thread that makes that value releases it.
void Shutdown::gather(Remains& remains) {
  std::ranges::move(server_.take_all(), std::back_inserter(remains.requests));
  std::ranges::move(references_.take_values(), std::back_inserter(remains.values));
}

// False: a callback has forked and returned in the child.
bool Shutdown::close(Remains& remains) {
  Lock lock(monitor_.mutex());
  life_.close();
  monitor_.wake();
  calls_.fail_all({Status::closed, -1, {}, {}, "this worker was shut down before the call was answered", {}});
  gather(remains);
  references_.forget_forks();
  monitor_.wake_sleepers();
  stepper_.catch_up(lock);
  if (life_.forked()) return false;
  // The thread that waits for messages is interrupted, and leaves.
  monitor_.wake();
  monitor_.await_no_leader(lock);
  gather(remains);
  stepper_.catch_up(lock);  // what came with the last messages
  if (life_.forked()) return false;
  remains.inbox = monitor_.take_inbox();
  remains.lost = life_.lost().has_value();
  if (server_.running() != 0) return true;  // a call that a passed deadline has left running may use its object
  for (const auto& value : remains.values) remains.objects.push_back(References::take_object(*value));
  return true;
}

}  // namespace shmb::remote
