// SPDX-License-Identifier: Apache-2.0
// What the broker tells of the world: who comes, who goes, what nobody refers to any more. With a worker end the calls
// to it, and what is known of its values; what it asked to be made is made all the same.
#include <algorithm>
#include <iterator>

#include "client/views.hpp"
#include "spawn/remote_agent.hpp"

namespace shmb::remote {

using client::Deadline;
using client::RemoteEvent;

Worker Agent::worker(std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  return workers_[rank];
}

Result<std::uint32_t> Agent::find(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return workers_.find(name);
}

void Agent::take_event(const RemoteEvent& event) {
  if (event.kind != RemoteEvent::Kind::gap && event.world != world_) return;
  switch (event.kind) {
    case RemoteEvent::Kind::world_changed:
      switch (event.change) {
        case SHMBW_WORLD_CHANGE_LEFT:
        case SHMBW_WORLD_CHANGE_DIED:
          return worker_gone(event.rank, event.life, event.change == SHMBW_WORLD_CHANGE_DIED);
        case SHMBW_WORLD_CHANGE_JOINED:
          return worker_came(event.rank, event.life);
        case SHMBW_WORLD_CHANGE_ENDED:
          return lose(ended_under_us().error());
        default:
          return;
      }
    case RemoteEvent::Kind::ref_unused:
      return unused(event.reference);
    case RemoteEvent::Kind::ref_changed: {
      const auto it = find_known(event.reference);
      if (!it || it->failure) return;
      it->confirmed = true;
      if (event.state == SHMBW_REF_STATE_READY) it->state = Known::State::ready;
      if (event.state == SHMBW_REF_STATE_FAILED) {
        it->state = Known::State::failed;
        if (!owned_here(*it)) after_.emplace_back([this, id = event.reference] { look_at_failed(id); });
      }
      return;
    }
    case RemoteEvent::Kind::gap:
      after_.emplace_back([this] { (void)read_workers(); });
      return;
  }
}

// A process has taken the place of one that died.
void Agent::worker_came(std::uint32_t rank, std::uint32_t life) {
  if (rank >= size() || rank == rank_ || life <= workers_[rank].life) return;
  if (workers_[rank].present()) worker_gone(rank, workers_[rank].life, true);
  workers_.came(rank, life);
  meeting_.reports.erase(rank);
  meeting_.last_sent.reset();
  wake();
}

void Agent::worker_gone(std::uint32_t rank, std::uint32_t life, bool died) {
  if (rank == rank_ || !workers_.went(rank, life, died)) return;
  some_gone_ = true;
  wanted_ &= ~(std::uint64_t{1} << rank);
  for (const auto& [id, weak] : known_)
    if (auto it = weak.lock(); it && it->owner == rank && it->owner_life <= life && !it->failure) {
      it->state = Known::State::failed;
      it->failure = failure_of(workers_.gone_error(rank, it->owner_life, Status::owner_gone));
      it->failure->text = "the owner of reference " + text_of(id) + ", " + it->failure->text;
    }
  std::vector<std::shared_ptr<Future>> ended;
  for (const auto& [number, call] : calls_)
    if (call->to == rank && call->to_life <= life) ended.push_back(call);
  for (const auto& call : ended)
    fail(call, failure_of(workers_.gone_error(rank, call->to_life,
                                              call->kind == Kind::call ? Status::worker_gone : Status::owner_gone)));
  // What it asked to be made is made all the same: others may hold a reference to it already, and wait.
  const auto from_it = [&](std::unique_ptr<Request>& request) {
    if (request->head.from != rank || request->head.from_life > life || request->head.kind == Kind::create)
      return false;
    bury(std::shared_ptr<Request>(std::move(request)));
    return true;
  };
  std::erase_if(work_, from_it);
  for (auto& [id, value] : values_) std::erase_if(value->waiting, from_it);
  for (auto it = unknown_.begin(); it != unknown_.end();) {
    std::erase_if(it->second, from_it);
    it = it->second.empty() ? unknown_.erase(it) : std::next(it);
  }
  meeting_.last_sent.reset();
  count_round();
  wake();
}

Result<void> Agent::read_workers() {
  std::vector<RefId> mine;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, value] : values_) mine.push_back(id);
  }
  client::Selection selection;
  selection.region.id = world_;
  auto list = client::list_workers(*session_, selection, Deadline::after(0));
  if (!list) return std::unexpected(list.error());
  auto references = client::list_references(*session_, selection, Deadline::after(0));
  const std::lock_guard lock(mutex_);
  if (list->rows.empty()) lose(ended_under_us().error());  // this worker itself would stand there
  for (const client::WorkerRow& row : list->rows) {
    if (row.record.rank >= size()) continue;
    const auto state = static_cast<shmbw_worker_state>(row.record.state);
    workers_.name(row.record.rank, row.name);
    if (workers_[row.record.rank].life != 0) worker_came(row.record.rank, row.record.life);
    if (!workers_.read(row.record.rank, row.record.life, state)) continue;
    if (state == SHMBW_WORKER_STATE_LEFT || state == SHMBW_WORKER_STATE_DIED)
      worker_gone(row.record.rank, row.record.life, state == SHMBW_WORKER_STATE_DIED);
  }
  if (!references) return {};
  std::set<RefId> booked;
  for (const client::ReferenceRow& row : references->rows)
    booked.insert({row.record.reference.counter, row.record.reference.creator});
  for (const RefId id : mine)
    if (!booked.contains(id) && values_.contains(id)) unused(id);
  wake();
  return {};
}

void Agent::read_writers() {
  client::Selection selection;
  selection.region.id = world_;
  const auto list = client::list_workers(*session_, selection, Deadline::after(0));
  if (!list) return;
  for (const client::WorkerRow& row : list->rows)
    if (row.record.participant < writers_.size() && row.record.rank < size())
      writers_[row.record.participant] = {row.record.participant_life, row.record.rank, row.record.life};
}

}  // namespace shmb::remote
