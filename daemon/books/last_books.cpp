// SPDX-License-Identifier: Apache-2.0
// See last_books.hpp. Only memory files are asked for their size: the file of a client could wait for that client.
#include "daemon/books/last_books.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"

namespace shmb::daemon::books {
namespace {

// Of a memory file with all of these seals; of something else all is zero.
sys::FileFacts facts_of(int number, int seals) {
  const auto found = sys::seals(number);
  if (!found || (*found & seals) != seals) return {};
  return sys::file_facts(number).value_or(sys::FileFacts{});
}

constexpr std::uint8_t kGreeted = 2;  // SessionRecord::phase

// Of that session's peer, as the kernel says.
bool is_connection(const SessionRecord& session) {
  const auto facts = sys::socket_facts(session.socket);
  if (!facts || facts->domain != AF_UNIX || facts->type != SOCK_SEQPACKET || facts->listening) return false;
  const auto peer = sys::peer_credentials(session.socket);
  return peer && peer->uid == session.uid && peer->pid == session.pid;
}

// Signal 0 reaches nobody, and any other descriptor gives EBADF.
bool is_pidfd(int number) {
  const auto sent = sys::pidfd_signal(number, 0);
  return sent || sent.error().value == ESRCH || sent.error().value == EPERM;
}

}  // namespace

Result<LastBooks> LastBooks::open(int number, bool sessions) {
  const sys::FileFacts facts = facts_of(number, 0);
  if (facts.size == 0)
    return error(Status::broken, "the books cannot be read: descriptor " + std::to_string(number) +
                                     ", which should be theirs, is no memory file or an empty one");
  std::vector<Mapping> memory;
  const auto map = [&](std::uint64_t offset, std::uint64_t end) -> Result<std::span<std::byte>> {
    const std::uint64_t before = offset % kSmallPage;
    auto mapped = Mapping::map(number, offset - before, end - offset + before, Access::read_write);
    if (!mapped) return system_failure(mapped.error(), "mapping the books of the last broker");
    memory.push_back(std::move(*mapped));
    return std::span(memory.back().data() + before, end - offset);
  };
  const auto map_memory = [&](std::uint64_t offset, std::uint64_t bytes) -> Result<std::span<std::byte>> {
    auto end = sys::memory_end(number, offset, bytes);
    if (!end) return system_failure(end.error(), "looking for the memory of the last broker's books");
    if (*end == offset) return std::span<std::byte>();
    return map(offset, *end);
  };
  Parts parts;
  SHMB_TRY(front, map(0, std::min<std::uint64_t>(facts.size, kTablesAt)));
  parts.front = front;
  SHMB_TRY(head, read_head(front, facts.size));
  SHMB_TRY(journal, map_memory(head.journal, head.journal_bytes));
  parts.journal = journal;
  for (std::uint32_t i = 0; i < head.kinds; ++i) {
    SHMB_TRY(table, map_memory(head.tables[i].offset, std::uint64_t{head.tables[i].size} * head.tables[i].capacity));
    parts.tables[i] = table;
  }
  SHMB_TRY(reader, Reader::open(head, parts));
  // A place that was never in use has no memory behind it, and a look at it would take some.
  if (const auto used = reader.bytes_in_use(); !used || *used > facts.touched)
    return error(Status::broken, "the books contradict themselves: the totals do not say how many records there are");
  if (const auto problems = reader.problems(); !problems.empty()) {
    std::string why = "the books contradict themselves: ";
    for (std::size_t i = 0; i < std::min<std::size_t>(problems.size(), 5); ++i) why += (i ? "; " : "") + problems[i];
    if (problems.size() > 5) why += "; and " + std::to_string(problems.size() - 5) + " more";
    return error(Status::broken, why);
  }
  LastBooks out(number, std::move(memory), std::move(reader));
  out.check_memory();
  if (sessions) out.check_sessions();
  std::ranges::sort(out.numbers_);
  if (const auto twice = std::ranges::adjacent_find(out.numbers_); twice != out.numbers_.end())
    return error(Status::broken, "the books contradict themselves: descriptor " + std::to_string(*twice) +
                                     " belongs to two of the books, the regions, the pools and the sessions");
  return out;
}

bool LastBooks::has_memory(const RegionRecord& region) const {
  return std::ranges::binary_search(regions_, region.memory);
}

void LastBooks::check_memory() {
  std::set<std::uint64_t> gpu;
  std::map<std::uint64_t, RegionRecord> segments;
  each<GpuMemoryRecord>([&](const GpuMemoryRecord& memory) { gpu.insert(memory.id); });
  each<RegionRecord>([&](const RegionRecord& region) {
    if (region.memory < 0 || gpu.contains(region.id)) return;
    if (facts_of(region.memory, F_SEAL_GROW | F_SEAL_SHRINK).size == region.bytes) {
      if (region.segment_of != 0) segments.emplace(region.id, region);
      return regions_.push_back(region.memory);
    }
    losses_.push_back("region " + std::to_string(region.id) + ": descriptor " + std::to_string(region.memory) +
                      " is not its memory of " + std::to_string(region.bytes) + " bytes");
  });
  pools_ = LastPools(reader_, [&](std::uint64_t id) {
    const auto at = segments.find(id);
    return at == segments.end() ? nullptr : &at->second;
  });
  std::ranges::sort(regions_);
  numbers_ = regions_;
  numbers_.insert(numbers_.end(), pools_.numbers().begin(), pools_.numbers().end());
  losses_.insert(losses_.end(), pools_.losses().begin(), pools_.losses().end());
  numbers_.push_back(number_);
}

void LastBooks::check_sessions() {
  std::set<std::uint64_t> numbered, stuck;
  each<PacketsRecord>([&](const PacketsRecord& packets) { numbered.insert(packets.id); });
  std::set<std::uint64_t> pools;
  for (const LastPool& pool : pools_.whole()) pools.insert(pool.pool.id);
  each<ParticipantRecord>([&](const ParticipantRecord& participant) {
    if (!pools.contains(participant.pool)) stuck.insert(participant.session);
  });
  each<WorkerRecord>([&](const WorkerRecord& worker) { stuck.insert(worker.session); });
  each<GpuDeviceRecord>([&](const GpuDeviceRecord& device) { stuck.insert(device.session); });
  std::set<std::uint64_t> regions;
  each<RegionRecord>([&](const RegionRecord& region) {
    if (has_memory(region)) regions.insert(region.id);
  });
  each<LeaseRecord>([&](const LeaseRecord& lease) {
    if (!regions.contains(lease.region)) stuck.insert(lease.session);
  });
  each<SessionRecord>([&](const SessionRecord& session) {
    if (session.phase != kGreeted || session.lazy || !numbered.contains(session.id) || stuck.contains(session.id))
      return;
    if (!is_connection(session) || (session.pidfd >= 0 && !is_pidfd(session.pidfd))) {
      if (session.socket >= 0)
        losses_.push_back("session " + std::to_string(session.id) + ": its socket or its pidfd is not there");
      return;
    }
    resuming_.insert(session.id);
    numbers_.push_back(session.socket);
    if (session.pidfd >= 0) numbers_.push_back(session.pidfd);
  });
}

}  // namespace shmb::daemon::books
