// SPDX-License-Identifier: Apache-2.0
// See vandal.hpp. All stores are relaxed atomics: what a hostile process does between them is not ours to imagine.
#include "tests/storm/vandal.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <string>

#include "base/sys_futex.hpp"
#include "client/queue/message.hpp"

namespace storm {

using namespace shmb;
using pool::CellWord;
using pool::QueueKind;

const char* damage_name(Damage damage) {
  static constexpr std::array<const char*, static_cast<std::size_t>(Damage::count)> names = {
      "words", "pages", "holes", "fields", "handles", "contents", "events", "near_miss", "directory"};
  return names[static_cast<std::size_t>(damage)];
}

std::span<std::uint64_t> seize_directory(int fd, std::size_t bytes) {
  if (::fchmod(fd, 0600) != 0) return {};
  const int writable = ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC);
  if (writable < 0) return {};
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, writable, 0);
  ::close(writable);
  if (at == MAP_FAILED) return {};
  return {static_cast<std::uint64_t*>(at), bytes / 8};
}

std::uint64_t Vandal::any_word() {
  switch (roll(6)) {
    case 0:
      return 0;
    case 1:
      return UINT64_MAX;
    case 2:
      return std::uint64_t{1} << roll(64);
    case 3:
      return roll(300);
    default:
      return dice_();
  }
}

std::uint64_t Vandal::near(std::uint64_t word) {
  switch (roll(5)) {
    case 0:
      return word ^ std::uint64_t{1} << roll(64);
    case 1:
      return word + roll(70) - 35;
    case 2:
      return ~word;
    case 3:
      return any_word();
    default:
      return word + (std::uint64_t{1} << roll(64));
  }
}

bool Vandal::lane(pool::LaneView& out, QueueKind& kind) {
  const pool::View& view = pool_->view();
  for (int tries = 0; tries < 64; ++tries) {
    const pool::LaneEntry& entry = view.lane(roll(view.lanes()));
    if (pool::Stamp::of(entry.stamp.load()).state == 0 || entry.queue >= view.queues()) continue;
    kind = static_cast<QueueKind>(view.queue(entry.queue).kind);
    if (!view.lane_fits(entry.offset, kind, entry.cells, entry.cell_size)) continue;
    out = pool::LaneView(view.lane_memory(entry.offset), kind, entry.cells, entry.cell_size);
    return true;
  }
  return false;
}

void Vandal::cell(bool with_body) {
  pool::LaneView words;
  QueueKind kind{};
  if (!lane(words, kind)) return;
  // Near the place where both ends are looking now.
  const std::uint64_t position = words.tail().load() + roll(8) - 4;
  pool::Cell& cell = words.cell(position);
  if (with_body) {
    static constexpr std::uint64_t kNumbers[] = {
        0, 1, 8, 16, 4096, UINT32_MAX, 1 << 20, INT64_MAX, UINT64_MAX, UINT64_MAX - 15, std::uint64_t{1} << 59};
    auto number = [&] { return roll(3) == 0 ? dice_() : kNumbers[roll(std::size(kNumbers))]; };
    pool::Handle handle{};
    handle.slot = roll(4) == 0 ? static_cast<std::uint32_t>(number())
                               : static_cast<std::uint32_t>(roll(pool_->view().slots() + 2));
    handle.generation = roll(2) == 0 ? static_cast<std::uint32_t>(roll(50)) : static_cast<std::uint32_t>(dice_());
    handle.region = roll(4) == 0 ? number() : roll(200);
    handle.offset = roll(2) == 0 ? 0 : number();
    handle.length = roll(2) == 0 ? roll(5000) : number();
    handle.type = dice_();
    handle.parts = roll(2) == 0 ? roll(200) : number();
    std::memcpy(cell.body(), &handle, sizeof handle);
    if (roll(3) == 0) {  // as a list that lies in the cell
      const client::ListHeader header{static_cast<std::uint32_t>(roll(4)), static_cast<std::uint32_t>(number()), 0};
      std::memcpy(cell.body(), &header, sizeof header);
    }
  }
  static constexpr std::uint8_t kTags[] = {0, 8, 56, 57, 119, 120, 121, 200, 0xfb, 0xfc, 0xfd, 0xfe, 0xff};
  CellWord word;
  word.position = position & pool::kPositionMask;
  word.tag = kTags[roll(std::size(kTags))];
  word.state = static_cast<std::uint8_t>(roll(4) == 0 ? roll(128) : roll(3));
  if (with_body) word.state = static_cast<std::uint8_t>(pool::CellState::full);
  cell.word.store(word.word(), std::memory_order_release);
}

void Vandal::fields() {
  const pool::View& view = pool_->view();
  const auto participant = roll(pool::kParticipants);
  switch (roll(12)) {
    case 0:
      if (view.slots() != 0) view.slot(roll(view.slots())).holders.store(any_word());
      return;
    case 1:
      if (view.slots() != 0) view.slot(roll(view.slots())).generation.fetch_add(static_cast<std::uint32_t>(roll(3)));
      return;
    case 2:
      view.wait(participant).sleep.store(any_word());
      return;
    case 3:
      view.wait(participant).event.fetch_add(static_cast<std::uint32_t>(dice_()));
      return;
    case 4:
      view.control().slot_waiters.mask.store(any_word());
      return;
    case 5: {
      pool::QueueWaiters& waiters = view.queue_waiters(roll(view.queues()));
      (roll(2) == 0 ? waiters.readers : waiters.writers).mask.store(any_word());
      return;
    }
    default:
      break;
  }
  pool::LaneView words;
  QueueKind kind{};
  if (!lane(words, kind)) return;
  switch (roll(5)) {
    case 0:
      words.head().store(near(words.head().load()));
      return;
    case 1:
      words.tail().store(near(words.tail().load()));
      return;
    case 2:
      if (kind == QueueKind::broadcast) {
        pool::ReaderEntry& reader = words.reader(participant);
        reader.position.store(near(reader.position.load()));
        if (roll(4) == 0) reader.lost.store(any_word());
      }
      return;
    default:
      cell(false);
  }
}

// Headers and tables of lists, with numbers that are nearly right.
void Vandal::contents() {
  const std::uint32_t slots = pool_->view().slots();
  if (slots == 0) return;
  const auto slot = static_cast<std::uint32_t>(roll(slots));
  std::byte* bytes = pool_->data(slot);
  const std::uint64_t size = pool_->slot_size(slot);
  if (bytes == nullptr || size < 64) return;
  for (int n = 0; n < 64; ++n) {
    auto* word =
        reinterpret_cast<std::atomic<std::uint32_t>*>(bytes + roll(size / 4) * 4 % (roll(2) == 0 ? 256 : size));
    word->store(roll(2) == 0 ? static_cast<std::uint32_t>(any_word()) : word->load() ^ 1U << roll(32));
  }
}

// What it overwrites it mostly puts back a little later, so that its fellows go on and come back to other words.
void Vandal::directory() {
  const auto word = [&](std::size_t at) { return std::atomic_ref(directory_[at]); };
  while (!taken_.empty() && roll(8) != 0) {
    word(taken_.back().first).store(taken_.back().second);
    taken_.pop_back();
  }
  if (roll(64) == 0) {
    const std::vector<std::uint64_t> all(directory_.begin(), directory_.end());
    const std::uint64_t how = roll(3);
    for (std::size_t at = 0; at < all.size(); ++at)
      word(at).store(how == 0 ? 0 : how == 1 ? any_word() : near(all[at]));
    for (std::size_t at = 0; at < all.size(); ++at) word(at).store(all[at]);
    return;
  }
  for (int n = 0; n < 40; ++n) {
    std::size_t at = roll(directory_.size());
    for (int tries = 0; tries < 64 && word(at).load() == 0; ++tries) at = roll(directory_.size());
    const std::uint64_t now = word(at).load();
    taken_.emplace_back(at, now);
    word(at).store(near(now));
  }
}

void Vandal::strike(Damage damage) {
  const pool::View& view = pool_->view();
  const std::span<std::byte> area = view.control_area();
  auto* const words = reinterpret_cast<std::atomic<std::uint64_t>*>(area.data());
  constexpr std::size_t kPage = 4096;
  switch (damage) {
    case Damage::words:
      for (int n = 0; n < 500; ++n) words[roll(area.size() / 8)].store(dice_());
      return;
    case Damage::pages: {
      const std::size_t page = roll(area.size() / kPage) * kPage / 8;
      const std::uint64_t how = roll(3);
      for (std::size_t i = 0; i < kPage / 8; ++i) words[page + i].store(how == 0 ? 0 : how == 1 ? UINT64_MAX : dice_());
      return;
    }
    case Damage::holes:
      (void)::madvise(area.data() + roll(area.size() / kPage) * kPage, kPage, MADV_REMOVE);
      return;
    case Damage::fields:
      for (int n = 0; n < 20; ++n) fields();
      return;
    case Damage::handles:
      for (int n = 0; n < 4; ++n) cell(true);
      return;
    case Damage::contents:
      for (int n = 0; n < 20; ++n) contents();
      return;
    case Damage::events:
      for (std::size_t i = 0; i < pool::kParticipants; ++i) {
        view.wait(i).event.fetch_add(1);
        if (roll(4) == 0) (void)sys::futex_wake(view.wait(i).event, INT_MAX);
        if (roll(8) == 0) view.wait(i).sleep.store(roll(4) == 0 ? 0 : roll(1000));
      }
      return;
    case Damage::near_miss:
      for (int n = 0; n < 10; ++n) {
        auto& word = words[roll(area.size() / 8)];
        if (const std::uint64_t now = word.load(); now != 0) word.store(now ^ std::uint64_t{1} << roll(64));
        pool::LaneView lane_words;
        QueueKind kind{};
        if (roll(4) != 0 || !lane(lane_words, kind)) continue;
        const std::uint64_t from = roll(lane_words.cells()), to = roll(lane_words.cells());
        std::memmove(static_cast<void*>(&lane_words.cell(to)), static_cast<void*>(&lane_words.cell(from)),
                     lane_words.body_bytes() + 8);
      }
      return;
    case Damage::directory:
      directory();
      return;
    default:
      return;
  }
}

}  // namespace storm
