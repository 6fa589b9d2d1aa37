// SPDX-License-Identifier: Apache-2.0
// See store.hpp. Each function that changes the memory says which of its stores a reader may see.
#include "daemon/books/store.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/compat.hpp"
#include "base/sys_memory.hpp"

namespace shmb::daemon::books {
namespace {

constexpr std::uint64_t kPage = 4096;
// A journal that was larger once gives back what is beyond this and its usual size.
constexpr std::uint64_t kJournalSlack = std::uint64_t{256} << 10;

constexpr std::uint64_t round_up(std::uint64_t value) { return (value + kPage - 1) / kPage * kPage; }

Result<Fd> make_file(const char* label, std::uint64_t bytes, bool no_exec) {
  auto fd = sys::memfd_create(label, no_exec);
  if (!fd) return system_failure(fd.error(), "memfd_create for the books");
  if (auto sized = sys::truncate(fd->get(), bytes); !sized)
    return system_failure(sized.error(), "ftruncate of the books, within RLIMIT_FSIZE");
  if (auto mode = sys::set_mode(fd->get(), 0600); !mode) return system_failure(mode.error(), "fchmod of the books");
  return std::move(*fd);
}

// An errno where a store would be a signal. A kernel that does not know it gives memory at the first store.
Sys<void> populate(std::byte* from, std::uint64_t bytes) {
  auto done = sys::madvise(from, bytes, MADV_POPULATE_WRITE);
  if (!done && done.error().value != EINVAL) return done;
  return {};
}

}  // namespace

void Store::Table::add_free(std::uint32_t place) {
  gone.push_back(place);
  std::swap(gone[free++], gone.back());
}

std::uint32_t Store::Table::take_free() {
  std::swap(gone[--free], gone.back());
  const std::uint32_t place = gone.back();
  gone.pop_back();
  return place;
}

bool Store::give_memory(Mapping& part, std::uint64_t part_at, std::uint64_t most, std::uint64_t from,
                        std::uint64_t bytes) {
  const std::uint64_t needed = round_up(from + bytes);
  if (needed > part.size()) {
    const std::uint64_t wanted = std::min(round_up(most), std::max(needed, std::uint64_t{2} * part.size()));
    if (part) {
      if (!part.grow(wanted)) return false;
    } else {
      auto mapped = Mapping::map(fd_.get(), part_at, wanted, Access::read_write);
      if (!mapped) return false;
      part = std::move(*mapped);
      // Pages of 2 MiB would make the tables large, and a core of the broker too.
      (void)sys::madvise(part.data(), part.size(), MADV_NOHUGEPAGE);
      (void)sys::madvise(part.data(), part.size(), MADV_DONTDUMP);
    }
  }
  const std::uint64_t begin = from / kPage * kPage;
  return populate(part.data() + begin, needed - begin).has_value();
}

Head Store::head_for(std::uint64_t epoch, const std::array<std::uint32_t, kMostKinds>& capacities,
                     std::uint64_t journal_bytes) {
  Head head;
  head.epoch = epoch;
  std::uint64_t at = kTablesAt;
  for (std::size_t i = 0; i < kRecordKinds.size(); ++i) {
    head.tables[i] = {kRecordKinds[i].size, capacities[i], at};
    at = round_up(at + std::uint64_t{capacities[i]} * kRecordKinds[i].size);
  }
  head.journal = at;
  head.journal_bytes = journal_bytes;
  head.bytes = round_up(at + journal_bytes);
  head.check = check_of(head, kMagic);
  return head;
}

Result<Store> Store::make(const Shape& shape) {
  Store store;
  store.of_request_ = shape.of_request;
  store.capacity_ = shape.capacity;
  std::array<std::uint32_t, kMostKinds> places{};
  // A transaction holds each record once at most: put or erased. Those that it erases may be other ones.
  std::uint64_t journal = sizeof(JournalHead);
  for (std::size_t i = 0; i < kRecordKinds.size(); ++i) {
    const auto number = static_cast<std::uint32_t>(i + 1);
    places[i] = number == TotalsRecord::kNumber ? 1 : shape.capacity + store.most_of_request(number);
    journal += std::uint64_t{places[i]} * (sizeof(EntryHead) + kRecordKinds[i].size);
  }
  store.head_ = head_for(shape.epoch, places, journal);
  SHMB_TRY(fd, make_file("shm:books", store.head_.bytes, shape.no_exec));
  store.fd_ = std::move(fd);
  if (!store.give_memory(store.first_, 0, kTablesAt, 0, kTablesAt) || !store.places_room(TotalsRecord::kNumber, 1) ||
      !store.ready())
    return error(Status::no_memory, "no memory for the books: they need some 500 KiB at the start");
  std::memcpy(store.first_.data(), &store.head_, sizeof store.head_);
  store.totals.id = 1;
  store.totals.high[TotalsRecord::kNumber - 1] = store.totals.count[TotalsRecord::kNumber - 1] = 1;
  return store;
}

bool Store::journal_room(std::uint64_t bytes) {
  if (bytes <= journal_ready_) return true;
  if (bytes > head_.journal_bytes) return false;
  // An eighth more, and whole pages, so that a long transaction does not ask the kernel for each record.
  const std::uint64_t ready =
      std::min(round_up(std::max(bytes, journal_ready_ + journal_ready_ / 8)), head_.journal_bytes);
  if (!give_memory(journal_, head_.journal, head_.journal_bytes, journal_ready_, ready - journal_ready_)) return false;
  journal_ready_ = ready;
  return true;
}

// Memory behind so many places beyond those in use, of which some may be there already.
bool Store::places_room(std::uint32_t number, std::uint32_t wanted) {
  Table& table = tables_[number - 1];
  const TableHead& head = head_.tables[number - 1];
  const std::size_t left = table.free + (table.ready - table.high);
  if (left >= wanted) return true;
  // A whole request's more, so that not each request asks the kernel. And an eighth, so that many records do not ask
  // often. The kernel gives whole pages, so all of the last one is used.
  const std::uint64_t more = std::max<std::uint64_t>({of_request(number), wanted - left, table.ready / 8});
  const std::uint64_t places = round_up((table.ready + more) * head.size) / head.size;
  const auto ready = static_cast<std::uint32_t>(std::min<std::uint64_t>(head.capacity, places));
  if (ready - table.ready < wanted - left ||
      !give_memory(table.memory, head.offset, std::uint64_t{head.capacity} * head.size,
                   std::uint64_t{table.ready} * head.size, std::uint64_t{ready - table.ready} * head.size))
    return false;
  // Here, so that `erase` never allocates.
  if (ready > table.gone.capacity()) table.gone.reserve(std::max<std::size_t>(ready, 2 * table.gone.capacity()));
  table.ready = ready;
  journal_unsure_ = true;
  return true;
}

bool Store::ready() {
  bool room = true;
  each_bit(unsure_, [&](std::uint32_t number) {
    if (number > tables_.size() || number == TotalsRecord::kNumber || !room) return;
    room = places_room(number, of_request(number) + tables_[number - 1].lacking);
  });
  if (!room || (journal_unsure_ && !journal_for_request())) return false;
  unsure_ = 0;
  short_ = false;
  return true;
}

void Store::expect(std::uint32_t number) {
  if ((expected_ & bit(number)) != 0) return;
  expected_ |= bit(number);
  unsure_ |= bit(number);
  journal_unsure_ = true;
}

bool Store::journal_for_request() {
  std::uint64_t journal = sizeof(JournalHead) + written_ + sizeof(EntryHead) + sizeof(TotalsRecord);
  for (std::uint32_t number = 1; number <= tables_.size(); ++number) {
    if (number == TotalsRecord::kNumber) continue;
    // A request can put so many records, and can end all that there are.
    journal += std::uint64_t{of_request(number)} * (sizeof(EntryHead) + head_.tables[number - 1].size) +
               tables_[number - 1].ready * sizeof(EntryHead);
  }
  journal_kept_ = std::min(journal, head_.journal_bytes);
  journal_unsure_ = !journal_room(journal_kept_);
  return !journal_unsure_;
}

void Store::begin() {
  written_ = 0;
  short_ = false;
  each_bit(counts_, [&](std::uint32_t number) { tables_[number - 1].added = tables_[number - 1].lacking = 0; });
}

void Store::run_short() {
  short_ = journal_unsure_ = true;
  unsure_ = UINT32_MAX;
}

std::uint32_t Store::put(std::uint32_t number, std::uint32_t place, std::byte* record) {
  Table& table = tables_[number - 1];
  const std::size_t size = head_.tables[number - 1].size;
  if (place == kNowhere) {
    counts_ |= bit(number);
    unsure_ |= bit(number);
    if (table.free != 0 || table.high < table.ready || places_room(number, 1)) {
      place = table.free == 0 ? table.high++ : table.take_free();
    } else if (!table.gone.empty()) {
      place = table.gone.back();  // one record takes the place of another
      table.gone.pop_back();
    } else {
      ++table.lacking;
      written_ += sizeof(EntryHead) + size;
      run_short();
      return kNowhere;
    }
  }
  const std::byte* const booked = record_at(number, place);
  constexpr std::size_t kCheck = sizeof(std::uint64_t);
  if (std::memcmp(booked, record, size - kCheck) == 0) return place;
  if (id_of(booked) == 0) {
    ++table.added;
    counts_ |= bit(number);
  }
  const std::uint64_t check = check_of_record(number, place, record, size);
  std::memcpy(record + size - kCheck, &check, kCheck);
  append(number, place, record);
  return place;
}

void Store::erase(std::uint32_t number, std::uint32_t place) {
  if (place == kNowhere) return;
  Table& table = tables_[number - 1];
  if (id_of(record_at(number, place)) == 0) return table.add_free(place);  // it never came into the books
  table.gone.push_back(place);
  counts_ |= bit(number);
  erased_ = true;
}

// Into the journal alone, which no reader looks at yet.
void Store::append(std::uint32_t number, std::uint32_t place, const std::byte* record) {
  EntryHead entry{number, place, record ? head_.tables[number - 1].size : 0, 0};
  const std::uint64_t offset = sizeof(JournalHead) + written_;
  written_ += sizeof entry + entry.size;
  if (!short_ && !journal_room(sizeof(JournalHead) + written_)) run_short();
  if (short_) return;
  const std::uint64_t transaction = words().committed + 1;
  entry.check = check_of(entry, transaction);
  std::byte* const at = journal_.data() + offset;
  std::memcpy(at, &entry, sizeof entry);
  if (record) std::memcpy(at + sizeof entry, record, entry.size);
}

bool Store::commit() {
  each_bit(counts_, [&](std::uint32_t number) {
    const Table& table = tables_[number - 1];
    if (number == TotalsRecord::kNumber) return;
    for (std::size_t i = table.free; i < table.gone.size(); ++i) append(number, table.gone[i], nullptr);
    totals.high[number - 1] = table.high;
    totals.count[number - 1] = table.used + table.added - table.erased();
  });
  totals_place_ = put(TotalsRecord::kNumber, totals_place_, reinterpret_cast<std::byte*>(&totals));
  if (short_) {
    publish(words().behind, 1);
    return false;
  }
  if (written_ == 0) {
    publish(words().behind, 0);
    return true;
  }
  const std::uint64_t transaction = words().committed + 1;
  JournalHead journal{transaction, written_, 0};
  journal.check = check_of(journal, kMagic);
  std::memcpy(journal_.data(), &journal, sizeof journal);
  publish(words().committed, transaction);  // this store is the commit
  apply_journal(journal_.data(), head_, [this](auto number, auto place) { return record_at(number, place); });
  publish(words().behind, 0);
  publish(words().applied, transaction);
  each_bit(counts_, [&](std::uint32_t number) {
    Table& table = tables_[number - 1];
    table.used += table.added - table.erased();
    table.free = table.gone.size();
    table.added = 0;
  });
  counts_ = 0;
  written_ = 0;
  erased_ = false;
  shrink_journal();
  return true;
}

void Store::shrink_journal() {
  const std::uint64_t keep = round_up(journal_kept_ + kJournalSlack);
  if (journal_ready_ <= keep) return;
  if (sys::madvise(journal_.data() + keep, round_up(journal_ready_) - keep, MADV_REMOVE)) journal_ready_ = keep;
}

Head Store::head_of_copy() const {
  std::array<std::uint32_t, kMostKinds> places{};
  for (std::size_t i = 0; i < tables_.size(); ++i) places[i] = std::max(std::uint32_t{1}, tables_[i].high);
  return head_for(head_.epoch, places, sizeof(JournalHead));
}

std::uint64_t Store::copy_bytes() const { return head_of_copy().bytes; }

Result<Fd> Store::copy() const {
  const Head head = head_of_copy();
  SHMB_TRY(fd, make_file("shm:books.copy", head.bytes, true));
  {
    auto mapped = Mapping::map(fd.get(), 0, head.bytes, Access::read_write);
    if (!mapped) return system_failure(mapped.error(), "mapping a copy of the books");
    std::byte* const to = mapped->data();
    if (auto filled = populate(to, head.bytes); !filled)
      return system_failure(filled.error(), "memory for a copy of the books");
    std::memcpy(to, &head, sizeof head);
    std::memcpy(to + kWordsAt, &words(), sizeof(Words));
    for (std::uint32_t number = 1; number <= kRecordKinds.size(); ++number) {
      const RecordKind& kind = kRecordKinds[number - 1];
      for (std::uint32_t place = 0; place < tables_[number - 1].high; ++place) {
        std::byte* const record = to + head.tables[number - 1].offset + std::uint64_t{place} * kind.size;
        std::memcpy(record, record_at(number, place), kind.size);
        if (id_of(record) == 0) continue;
        for (const Field& field : kind.fields)
          if (field.type == Type::secret) std::memset(record + field.offset, 0, field.size);
        const std::uint64_t check = check_of_record(number, place, record, kind.size);
        std::memcpy(record + kind.size - sizeof check, &check, sizeof check);
      }
    }
  }
  if (auto sealed = sys::add_seals(fd.get(), F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL); !sealed)
    return system_failure(sealed.error(), "sealing a copy of the books");
  return std::move(fd);
}

}  // namespace shmb::daemon::books
