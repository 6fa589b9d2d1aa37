// SPDX-License-Identifier: Apache-2.0
// See roster.hpp.
#include "spawn/remote/roster.hpp"

#include <algorithm>
#include <utility>

namespace shmb::remote {

bool Roster::came(std::uint32_t rank, std::uint32_t life) {
  if (rank >= size() || life <= workers_[rank].life) return false;
  workers_[rank].life = life;
  workers_[rank].state = SHMBW_WORKER_STATE_PRESENT;
  return true;
}

bool Roster::went(std::uint32_t rank, std::uint32_t life, bool died) {
  if (rank >= size() || life < workers_[rank].life) return false;
  workers_[rank].life = life;
  const auto state = died ? SHMBW_WORKER_STATE_DIED : SHMBW_WORKER_STATE_LEFT;
  return std::exchange(workers_[rank].state, state) != state;
}

bool Roster::read(std::uint32_t rank, std::uint32_t life, shmbw_worker_state state) {
  Worker& worker = workers_[rank];
  if (life < worker.life) return false;
  worker.life = life;
  const bool gone = state == SHMBW_WORKER_STATE_LEFT || state == SHMBW_WORKER_STATE_DIED;
  if (!gone && worker.state == SHMBW_WORKER_STATE_ABSENT) worker.state = state;
  return true;
}

void Roster::name(std::uint32_t rank, const std::string& name) {
  if (workers_[rank].name.empty()) workers_[rank].name = name;
}

std::uint32_t Roster::present() const {
  return static_cast<std::uint32_t>(std::ranges::count_if(workers_, &Worker::present));
}

std::uint64_t Roster::census() const {
  std::uint64_t sum = 0;
  for (const Worker& worker : workers_) {
    if (!worker.present()) continue;
    std::uint64_t mixed = worker.life * 0x9e37'79b9'7f4a'7c15U;
    mixed = (mixed ^ (mixed >> 29)) * 0xbf58'476d'1ce4'e5b9U;
    sum += mixed ^ (mixed >> 32);
  }
  return sum;
}

std::uint32_t Roster::leader(std::uint32_t self) const {
  std::uint32_t first = self;
  for (std::uint32_t rank = 0; rank < size(); ++rank)
    if (workers_[rank].present() && workers_[rank].life < workers_[first].life) first = rank;
  return first;
}

Result<std::uint32_t> Roster::find(const std::string& name) const {
  std::string known;
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    if (workers_[rank].name == name) return rank;
    known += (known.empty() ? "" : ", ") + workers_[rank].name;
  }
  return error(Status::not_found, "there is no worker \"" + name + "\" in this world (there are: " + known + ")");
}

std::string Roster::where(std::uint32_t rank) const {
  return "worker \"" + workers_[rank].name + "\" (rank " + std::to_string(rank) + ")";
}

Error Roster::gone_error(std::uint32_t rank, std::uint32_t life, Status status) const {
  // Only the dead are replaced.
  const shmbw_worker_state state = life < workers_[rank].life ? SHMBW_WORKER_STATE_DIED : workers_[rank].state;
  return {status,
          0,
          {},
          where(rank) + (state == SHMBW_WORKER_STATE_DIED   ? " has died"
                         : state == SHMBW_WORKER_STATE_LEFT ? " has left the world"
                                                            : " is gone")};
}

// Others may have come since.
std::string Roster::missing() const {
  std::string out;
  std::uint32_t count = 0;
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    if (workers_[rank].present() || ++count > 8) continue;
    out += (out.empty() ? "rank " : ", ") + std::to_string(rank);
  }
  if (count > 8) out += " and " + std::to_string(count - 8) + " more";
  return out.empty() ? "not all workers came" : out + (count == 1 ? " has" : " have") + " not come";
}

}  // namespace shmb::remote
