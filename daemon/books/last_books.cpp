// SPDX-License-Identifier: Apache-2.0
// See last_books.hpp. Only memory files are asked for their size: the file of a client could wait for that client.
#include "daemon/books/last_books.hpp"

#include <fcntl.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/sys_memory.hpp"

namespace shmb::daemon::books {
namespace {

// Of a memory file with all of these seals; of something else all is zero.
sys::FileFacts facts_of(int number, int seals) {
  const auto found = sys::seals(number);
  if (!found || (*found & seals) != seals) return {};
  return sys::file_facts(number).value_or(sys::FileFacts{});
}

}  // namespace

Result<LastBooks> LastBooks::open(int number) {
  const sys::FileFacts facts = facts_of(number, 0);
  if (facts.size == 0)
    return error(Status::broken, "the books cannot be read: descriptor " + std::to_string(number) +
                                     ", which should be theirs, is no memory file or an empty one");
  auto memory = Mapping::map(number, 0, facts.size, Access::read_write);
  if (!memory) return system_failure(memory.error(), "mapping the books of the last broker");
  SHMB_TRY(reader, Reader::open({memory->data(), memory->size()}));
  // A place that was never in use has no memory behind it, and a look at it would take some.
  if (const auto used = reader.bytes_in_use(); !used || *used > facts.touched)
    return error(Status::broken, "the books contradict themselves: the totals do not say how many records there are");
  // The transport closes sockets and pidfds before the books forget them. So such a number may be that of memory too.
  if (const auto problems = reader.problems(false); !problems.empty()) {
    std::string why = "the books contradict themselves: ";
    for (std::size_t i = 0; i < std::min<std::size_t>(problems.size(), 5); ++i) why += (i ? "; " : "") + problems[i];
    if (problems.size() > 5) why += "; and " + std::to_string(problems.size() - 5) + " more";
    return error(Status::broken, why);
  }
  LastBooks out(number, std::move(*memory), std::move(reader));
  out.check_memory();
  if (const auto twice = std::ranges::adjacent_find(out.numbers_); twice != out.numbers_.end())
    return error(Status::broken, "the books contradict themselves: descriptor " + std::to_string(*twice) +
                                     " belongs to two regions, or to a region and the books");
  return out;
}

bool LastBooks::has_memory(const RegionRecord& region) const {
  return std::ranges::binary_search(numbers_, region.memory);
}

void LastBooks::check_memory() {
  std::set<std::uint64_t> gpu;
  each<GpuMemoryRecord>([&](const GpuMemoryRecord& memory) { gpu.insert(memory.id); });
  each<RegionRecord>([&](const RegionRecord& region) {
    if (region.memory < 0 || gpu.contains(region.id)) return;
    if (facts_of(region.memory, F_SEAL_GROW | F_SEAL_SHRINK).size == region.bytes)
      return numbers_.push_back(region.memory);
    losses_.push_back("region " + std::to_string(region.id) + ": descriptor " + std::to_string(region.memory) +
                      " is not its memory of " + std::to_string(region.bytes) + " bytes");
  });
  numbers_.push_back(number_);
  std::ranges::sort(numbers_);
}

}  // namespace shmb::daemon::books
