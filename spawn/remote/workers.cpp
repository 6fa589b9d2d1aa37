// SPDX-License-Identifier: Apache-2.0
// See workers.hpp.
#include "spawn/remote/workers.hpp"

#include <set>
#include <vector>

#include "client/session/views.hpp"

namespace shmb::remote {

using client::RemoteEvent;

void Workers::take_event(const RemoteEvent& event) {
  if (event.kind != RemoteEvent::Kind::gap && event.world != place_.world) return;
  switch (event.kind) {
    case RemoteEvent::Kind::world_changed:
      switch (event.change) {
        case SHMBW_WORLD_CHANGE_LEFT:
        case SHMBW_WORLD_CHANGE_DIED:
          return gone(event.rank, event.life, event.change == SHMBW_WORLD_CHANGE_DIED);
        case SHMBW_WORLD_CHANGE_JOINED:
          return came(event.rank, event.life);
        case SHMBW_WORLD_CHANGE_ENDED:
          return calls_.lose(place_.world_ended());
        default:
          return;
      }
    case RemoteEvent::Kind::ref_unused:
      return references_.unused(event.reference);
    case RemoteEvent::Kind::ref_changed:
      if (references_.changed(event.reference, event.state)) calls_.look_at_failed(event.reference);
      return;
    case RemoteEvent::Kind::gap:
      callbacks_.add([this] { (void)read(); });
      return;
  }
}

void Workers::came(std::uint32_t rank, std::uint32_t life) {
  if (rank >= roster_.size() || rank == place_.rank || life <= roster_[rank].life) return;
  if (roster_[rank].present()) gone(rank, roster_[rank].life, true);
  roster_.came(rank, life);
  meeting_.worker_came(rank);
  monitor_.wake();
}

void Workers::gone(std::uint32_t rank, std::uint32_t life, bool died) {
  if (rank == place_.rank || !roster_.went(rank, life, died)) return;
  sender_.worker_gone(rank);
  references_.owner_gone(rank, life);
  calls_.worker_gone(rank, life);
  server_.worker_gone(rank, life);
  meeting_.worker_gone();
  monitor_.wake();
}

Result<void> Workers::read() {
  std::vector<RefId> mine;
  {
    const std::lock_guard lock(monitor_.mutex());
    mine = references_.value_ids();
  }
  client::Selection selection;
  selection.region.id = place_.world;
  SHMB_TRY(list, client::list_workers(*place_.session, selection, broker_deadline()));
  auto references = client::list_references(*place_.session, selection, broker_deadline());
  const std::lock_guard lock(monitor_.mutex());
  if (list.rows.empty()) calls_.lose(place_.world_ended());  // this worker itself would stand there
  for (const client::WorkerRow& row : list.rows) {
    if (row.record.rank >= roster_.size()) continue;
    const auto state = static_cast<shmbw_worker_state>(row.record.state);
    roster_.name(row.record.rank, row.name);
    if (roster_[row.record.rank].life != 0) came(row.record.rank, row.record.life);
    if (!roster_.read(row.record.rank, row.record.life, state)) continue;
    if (state == SHMBW_WORKER_STATE_LEFT || state == SHMBW_WORKER_STATE_DIED)
      gone(row.record.rank, row.record.life, state == SHMBW_WORKER_STATE_DIED);
  }
  if (!references) return {};
  std::set<RefId> booked;
  for (const client::ReferenceRow& row : references->rows)
    booked.insert({row.record.reference.counter, row.record.reference.creator});
  for (const RefId id : mine)
    if (!booked.contains(id) && references_.owns(id)) references_.unused(id);
  monitor_.wake();
  return {};
}

}  // namespace shmb::remote
