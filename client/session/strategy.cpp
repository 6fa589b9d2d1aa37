// SPDX-License-Identifier: Apache-2.0
// See strategy.hpp. The state is plain numbers, so that a forked child has its parent's without doing anything.
#include "client/session/strategy.hpp"

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "base/sys_process.hpp"
#include "base/text.hpp"

namespace shmb::client {
namespace {

constexpr const char* kStrategyNames[] = {"file_descriptor", "file_system", nullptr};

std::atomic<int> chosen_strategy{0};  // 0: not read yet
std::atomic<bool> set_by_call{false};
std::atomic<std::uint64_t> kept_descriptors{0};

std::optional<Strategy> strategy_of(std::string_view name) {
  for (const Strategy one : {Strategy::file_system, Strategy::file_descriptor})
    if (name == name_of(one)) return one;
  return std::nullopt;
}

std::unexpected<Error> unknown_strategy(std::string_view name, const std::string& where) {
  std::string known;
  for (const char* one : strategy_names()) known += (known.empty() ? "" : ", ") + std::string(one);
  return error(Status::invalid, "there is no sharing strategy " + quoted(name) + where + "; there are: " + known);
}

}  // namespace

std::span<const char* const> strategy_names() { return std::span(kStrategyNames).first(std::size(kStrategyNames) - 1); }

const char* name_of(Strategy strategy) {
  return strategy == Strategy::file_descriptor ? "file_descriptor" : "file_system";
}

Result<Strategy> strategy() {
  if (const int known = chosen_strategy.load(std::memory_order_relaxed); known != 0)
    return static_cast<Strategy>(known);
  const char* text = ::secure_getenv(kStrategyVariable);
  Strategy found = Strategy::file_system;
  if (text != nullptr && *text != '\0') {
    auto named = strategy_of(text);
    if (!named) return unknown_strategy(text, std::string(" (") + kStrategyVariable + ")");
    found = *named;
  }
  int none = 0;  // another thread may have set one meanwhile
  if (!chosen_strategy.compare_exchange_strong(none, static_cast<int>(found))) return static_cast<Strategy>(none);
  return found;
}

Result<void> set_strategy(std::string_view name) {
  auto named = strategy_of(name);
  if (!named) return unknown_strategy(name, "");
  chosen_strategy = static_cast<int>(*named);
  set_by_call = true;
  return {};
}

std::optional<std::string> strategy_for_children() {
  if (!set_by_call) return std::nullopt;
  return name_of(static_cast<Strategy>(chosen_strategy.load()));
}

void read_strategy_again() {
  chosen_strategy = 0;
  set_by_call = false;
}

KeptDescriptor KeptDescriptor::of(Fd fd) {
  KeptDescriptor made;
  auto now = strategy();
  if (!now || *now != Strategy::file_descriptor || !fd) return made;
  auto limit = sys::descriptor_limit();
  if (!limit || kept_descriptors.fetch_add(1) >= limit->soft / 2) {
    if (limit) kept_descriptors.fetch_sub(1);
    return made;
  }
  made.fd_ = std::move(fd);
  return made;
}

void KeptDescriptor::reset() {
  if (!fd_) return;
  fd_.reset();
  kept_descriptors.fetch_sub(1);
}

}  // namespace shmb::client
