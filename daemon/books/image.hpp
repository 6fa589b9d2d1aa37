// SPDX-License-Identifier: Apache-2.0
// Where the books lie in their memory: a head that never changes, two words, one table for each kind of record, and the
// journal. Store writes such an image, and the reader of it may be another process of another version.
//
//   0      Head: version, and where each table and the journal begin
//   2048   Words: `committed` and `applied`, the numbers of transactions, and `behind`
//   4096   tables of fixed records, then the journal
//
// A transaction is written into the journal first: JournalHead, then its entries. Then its number is stored into
// `committed`. That one store makes all of its changes valid. Then the entries are put into their places, and the
// number is stored into `applied`. So a reader finds one of two states, whenever the writer was killed:
//
// - `committed` is `applied`: the tables are the state. The journal may hold the beginning of a transaction that was
//   never committed. A reader ignores it.
// - `committed` is one more than `applied`: some entries may be in their places, wholly or in part. A reader puts all
//   into their places again, and gets the state that the writer would have left.
//
// Where the kernel has no memory for a commit, the writer goes on without it: `behind` is 1 from then on, until a
// commit brings the tables up to date. It becomes 0 between `committed` and `applied`. So it is right for a reader that
// finds these two equal, and a reader that puts entries into their places sets it to 0.
//
// Checksums find bugs and damage. No reader needs them to tell apart the states that a kill leaves.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "daemon/books/records.hpp"

namespace shmb::daemon::books {

inline constexpr std::uint64_t kMagic = 0x736b'6f6f'626d'6873;  // "shmbooks"
inline constexpr std::size_t kWordsAt = 2048, kTablesAt = 4096, kMostKinds = 32;
static_assert(kRecordKinds.size() <= kMostKinds);

struct TableHead {
  std::uint32_t size = 0;  // of one record
  std::uint32_t capacity = 0;
  std::uint64_t offset = 0;
};

struct Head {
  std::uint64_t magic = kMagic;
  std::uint16_t major = kMajor, minor = kMinor;
  std::uint32_t kinds = kRecordKinds.size();
  std::uint64_t epoch = 0;
  std::uint64_t bytes = 0;  // of the whole image
  std::uint64_t journal = 0, journal_bytes = 0;
  TableHead tables[kMostKinds];
  std::uint64_t check = 0;
};
static_assert(sizeof(Head) <= kWordsAt);

struct Words {
  std::uint64_t committed = 0, applied = 0;
  std::uint64_t behind = 0;  // 1: what has left the broker since then is not in the tables
};

struct JournalHead {
  std::uint64_t transaction = 0;
  std::uint64_t bytes = 0;  // of its entries
  std::uint64_t check = 0;
};

// Followed by the record, or by nothing: the place is free.
struct EntryHead {
  std::uint32_t number = 0;  // of the kind of record
  std::uint32_t place = 0;
  std::uint64_t size = 0;
  std::uint64_t check = 0;
};

// Any change of one word changes the sum, because each step has an inverse. Four sums run side by side, because a step
// waits for the step before it.
inline std::uint64_t checksum(std::uint64_t seed, const void* data, std::size_t bytes) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  const auto step = [](std::uint64_t sum, std::uint64_t word) {
    sum = (sum ^ word) * 0x9e37'79b9'7f4a'7c15;
    return sum ^ (sum >> 29);
  };
  const auto word_at = [at = static_cast<const std::byte*>(data)](std::size_t offset) {
    std::uint64_t word = 0;
    std::memcpy(&word, at + offset, sizeof word);
    return word;
  };
  std::uint64_t a = seed, b = seed, c = seed, d = seed;
  std::size_t done = 0;
  for (; done + 4 * kWord <= bytes; done += 4 * kWord) {
    a = step(a, word_at(done));
    b = step(b, word_at(done + kWord));
    c = step(c, word_at(done + 2 * kWord));
    d = step(d, word_at(done + 3 * kWord));
  }
  for (; done + kWord <= bytes; done += kWord) a = step(a, word_at(done));
  return bytes < 4 * kWord ? a : step(step(step(a, b), c), d);
}

// The checksum of a struct whose last word is it.
template <class T>
std::uint64_t check_of(const T& whole, std::uint64_t seed) {
  return checksum(seed, &whole, sizeof whole - sizeof whole.check);
}

// The id of the record at a place. 0: the place is not in use.
inline std::uint64_t id_of(const std::byte* record) {
  std::uint64_t id = 0;
  std::memcpy(&id, record, sizeof id);
  return id;
}

// The number of its kind and its place go into the checksum, so a record is good only at its own place.
inline std::uint64_t check_of_record(std::uint32_t number, std::uint32_t place, const std::byte* record,
                                     std::size_t size) {
  return checksum((std::uint64_t{number} << 32 | place) + 1, record, size - sizeof(std::uint64_t));
}

inline std::uint64_t load(const std::uint64_t& word) {
  return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}

// Everything that the program stores before it is in memory before the word, and everything after it is later. A killed
// process has done what it did in this order, so no more than the compiler must be told.
inline void publish(std::uint64_t& word, std::uint64_t value) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::atomic_ref(word).store(value, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// Puts the entries of the journal into their places. They are known to be sound. `record_at(number, place)` is where a
// record lies.
template <class Where>
void apply_journal(const std::byte* at, const Head& head, Where record_at) {
  JournalHead journal;
  std::memcpy(&journal, at, sizeof journal);
  at += sizeof journal;
  for (const std::byte* const end = at + journal.bytes; at < end;) {
    EntryHead entry;
    std::memcpy(&entry, at, sizeof entry);
    at += sizeof entry;
    std::byte* const place = record_at(entry.number, entry.place);
    if (entry.size == 0) std::memset(place, 0, head.tables[entry.number - 1].size);
    else std::memcpy(place, at, entry.size);
    at += entry.size;
  }
}

}  // namespace shmb::daemon::books
