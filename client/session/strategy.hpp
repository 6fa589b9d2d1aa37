// SPDX-License-Identifier: Apache-2.0
// Sharing strategies, by the names that torch gave them: whether a mapped handle keeps its descriptor open. Under
// either one the broker frees what its users leave. A process does not run out of descriptors by keeping them: at most
// half of its limit of open files is kept. Further handles do without, and say so.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/fd.hpp"
#include "base/result.hpp"

namespace shmb::client {

enum class Strategy : int {
  file_system = 1,  // the identity only: a descriptor is fetched from the broker when one is needed. The default
  file_descriptor   // kept with the handle: further mappings need no broker, nor its life
};
inline constexpr const char* kStrategyVariable = "SHMBROKER_SHARING_STRATEGY";

std::span<const char* const> strategy_names();  // ends with a null pointer that is not counted
const char* name_of(Strategy strategy);
// The strategy of this process: as set, else the variable's, else the default. An error if the variable names none.
Result<Strategy> strategy();
Result<void> set_strategy(std::string_view name);
// For the environment of children. nullopt: no call has set a strategy.
std::optional<std::string> strategy_for_children();
// Call in a forked child whose environment was changed.
void read_strategy_again();

// The descriptor that a handle keeps, or none.
class KeptDescriptor {
 public:
  KeptDescriptor() = default;
  // Empty under file_system, and where the process has kept as many as it may.
  static KeptDescriptor of(Fd fd);
  KeptDescriptor(KeptDescriptor&& other) noexcept = default;
  KeptDescriptor& operator=(KeptDescriptor&& other) noexcept {
    reset();
    fd_ = std::move(other.fd_);
    return *this;
  }
  ~KeptDescriptor() { reset(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  const Fd& fd() const { return fd_; }
  void reset();

 private:
  Fd fd_;
};

}  // namespace shmb::client
