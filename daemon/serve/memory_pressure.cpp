// SPDX-License-Identifier: Apache-2.0
// See memory_pressure.hpp.
#include "daemon/serve/memory_pressure.hpp"

#include <charconv>
#include <string>

#include "base/text.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"

namespace shmb::daemon {

std::optional<std::uint64_t> stalled_us(std::string_view pressure) {
  if (!pressure.starts_with("some ")) return std::nullopt;
  const std::string_view line = pressure.substr(0, pressure.find('\n'));
  constexpr std::string_view key = " total=";
  const std::size_t at = line.find(key);
  std::uint64_t total = 0;
  if (at == line.npos) return std::nullopt;
  const auto [end, failure] = std::from_chars(line.data() + at + key.size(), line.data() + line.size(), total);
  if (failure != std::errc{} || end != line.data() + line.size()) return std::nullopt;
  return total;
}

MemoryPressure::MemoryPressure(Host& host, Groups& groups) : host_(host), groups_(groups) {
  groups_.on_recycled = [this] { recycled(); };
}

void MemoryPressure::recycled() {
  if (armed()) return;
  last_ = host_.facts.memory_stall();
  if (last_) host_.timers.set(*this, host_.now() + kLook);
}

void MemoryPressure::on_timer(std::int64_t now) {
  const std::uint64_t cached = groups_.bytes_cached;
  if (cached == 0) return;
  const auto before = last_;
  last_ = host_.facts.memory_stall();
  if (!last_) return;
  if (before && *last_ >= *before + kStalled) {
    groups_.filled_shelves.each([](Shelf& shelf) { shelf.drop_all(); });
    host_.log(5, "memory pressure: gave up " + format_size(cached) + " of recycled memory");
  } else {
    host_.timers.set(*this, now + kLook);
  }
}

}  // namespace shmb::daemon
