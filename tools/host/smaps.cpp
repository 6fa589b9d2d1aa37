// SPDX-License-Identifier: Apache-2.0
// See smaps.hpp. Memory of hugetlb is in no Rss of smaps and has lines of its own.
#include "tools/host/smaps.hpp"

#include <algorithm>

#include "base/result.hpp"
#include "tools/host/words.hpp"

namespace shmb::host {
namespace {

std::uint64_t kib(std::string_view text) { return number(text) * 1024; }

}  // namespace

Sys<std::map<std::pair<std::uint64_t, std::uint64_t>, Part>> parts_of(const Proc& proc, pid_t pid) {
  SHMB_TRY(text, proc.text(std::to_string(pid) + "/smaps"));
  std::map<std::pair<std::uint64_t, std::uint64_t>, Part> out;
  Part* part = nullptr;
  Mapping mapping;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = next_word(rest, '\n');
    const std::size_t colon = line.find(':');
    // "Rss:    4 kB", or the line of the next mapping, whose first colon stands in its device number.
    const bool is_value = colon != std::string_view::npos && line.find(' ') > colon;
    if (!is_value) {
      part = parse_mapping(line, mapping) && mapping.inode != 0 ? &out[{mapping.device, mapping.inode}] : nullptr;
      if (part != nullptr) part->mapped += mapping.end - mapping.start;
      continue;
    }
    if (part == nullptr) continue;
    const std::string_view name = line.substr(0, colon), value = line.substr(colon + 1);
    if (name == "Rss" || name == "Shared_Hugetlb" || name == "Private_Hugetlb") part->resident += kib(value);
    if (name == "Pss") part->proportional += kib(value);
    if (name == "Swap") part->swapped += kib(value);
  }
  return out;
}

}  // namespace shmb::host
