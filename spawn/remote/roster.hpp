// SPDX-License-Identifier: Apache-2.0
// The workers of a world: name, life and state of each rank, and the sentences about them. The lock of the worker that
// has the roster guards it.
//
// Guarantees: of a rank only newer news is taken, so an old list brings no worker back to life. Two workers that know
// of the same lives compute the same census and the same leader.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "proto/shmb_wire.h"

namespace shmb::remote {

struct Worker {
  shmbw_worker_state state = SHMBW_WORKER_STATE_ABSENT;
  std::uint32_t life = 0;
  std::string name;
  bool present() const { return state == SHMBW_WORKER_STATE_PRESENT; }
};

class Roster {
 public:
  void resize(std::uint32_t size) { workers_.resize(size); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(workers_.size()); }
  const Worker& operator[](std::uint32_t rank) const { return workers_[rank]; }

  // News of a rank. False: it was known already, or is older than what is known.
  bool came(std::uint32_t rank, std::uint32_t life);
  bool went(std::uint32_t rank, std::uint32_t life, bool died);
  // A row of the broker's list, but for an end, which is for went(). False: it is older than what is known.
  bool read(std::uint32_t rank, std::uint32_t life, shmbw_worker_state state);
  void name(std::uint32_t rank, const std::string& name);  // once

  bool there(std::uint32_t rank, std::uint32_t life) const {
    return workers_[rank].life == life && workers_[rank].present();
  }
  std::uint32_t present() const;
  // The lives that are there, in one number.
  std::uint64_t census() const;
  // The worker that joined first: a newcomer never takes the lead from one that has begun to count. `self` if no worker
  // is there.
  std::uint32_t leader(std::uint32_t self) const;

  Result<std::uint32_t> find(const std::string& name) const;
  std::string where(std::uint32_t rank) const;
  Error gone_error(std::uint32_t rank, std::uint32_t life, Status status) const;
  std::string missing() const;  // while the world comes together

 private:
  std::vector<Worker> workers_;
};

}  // namespace shmb::remote
