// SPDX-License-Identifier: Apache-2.0
// The writer of the books: begin, put or erase any number of records, commit. After `commit` all of the changes are in
// the books, and before it none of them is, wherever the broker is killed (image.hpp).
//
// The records lie in one memory file, whose pages outlive the process. It holds secrets, so its descriptor is given to
// no other process; `copy` makes an image without them.
//
// The file has room for more records than any host has memory for, so memory ends before a table is full. A place in
// the file costs nothing. Each table is mapped as far as it is in use, at most twice as far. The records in use have
// memory, and so have as many more as one request can add. `ready` makes sure of that before a request, so no request
// fails in the middle of its changes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/fd.hpp"
#include "base/mapping.hpp"
#include "base/result.hpp"
#include "daemon/books/image.hpp"

namespace shmb::daemon::books {

inline constexpr std::uint32_t kNowhere = UINT32_MAX;

class Store {
 public:
  struct Shape {
    std::uint64_t epoch = 0;
    std::uint32_t capacity = std::uint32_t{1} << 28;  // records of each kind
    std::uint32_t of_request = 256;  // how many records of a batched kind one request can add: the largest batch
    bool no_exec = true;
  };
  static Result<Store> make(const Shape& shape);

  // Whether there is memory for the records that one request can add, and for those that the last commit could not
  // write. Asks the kernel for more if there is too little.
  bool ready();
  // From now on requests add records of that kind, which is on demand: `ready` asks for their memory too.
  template <class Record>
  void expect() {
    expect(Record::kNumber);
  }
  // A commit did not get its memory, and none has come since. So the records are older than the objects.
  bool behind() const { return load(words().behind) != 0; }

  // The numbers of the next commit that are not counts of records.
  TotalsRecord totals;

  void begin();
  // Writes the record at its place, or at a new one. Nothing is written if the place holds the same record.
  template <class Record>
  void put(std::uint32_t& place, Record record) {
    place = put(Record::kNumber, place, reinterpret_cast<std::byte*>(&record));
  }
  // May be called before `begin`. Other records get the place after the commit. In a full table a record of the same
  // transaction may get it.
  template <class Record>
  void erase(std::uint32_t& place) {
    erase(Record::kNumber, place);
    place = kNowhere;
  }
  bool has_erased() const { return erased_; }
  // False: there is no memory for the changes. Nothing is changed, what was erased waits for the next commit, and what
  // was put has to be put again.
  bool commit();

  // The record as it is in the books; all zero where the place is not in use.
  template <class Record>
  Record at(std::uint32_t place) const {
    Record out;
    std::memcpy(&out, record_at(Record::kNumber, place), sizeof out);
    return out;
  }
  std::uint32_t count(std::uint32_t number) const { return tables_[number - 1].used; }
  // All records of a kind, by value.
  template <class Record, class Body>
  void each(Body body) const {
    each(Record::kNumber, [&](std::uint32_t place, const std::byte*) { body(at<Record>(place)); });
  }
  // The same for a kind that is known by its number, with the place of each.
  template <class Body>
  void each(std::uint32_t number, Body body) const {
    for (std::uint32_t place = 0; place < tables_[number - 1].high; ++place)
      if (const std::byte* const record = record_at(number, place); id_of(record) != 0) body(place, record);
  }
  std::uint64_t transactions() const { return load(words().committed); }

  // An image of the same records with zeros for all secrets, in a memory file that is sealed against writing and
  // growing.
  Result<Fd> copy() const;
  std::uint64_t copy_bytes() const;

  int descriptor() const { return fd_.get(); }
  std::uint64_t bytes() const { return head_.bytes; }
  std::uint32_t capacity() const { return capacity_; }  // records of each kind

 private:
  struct Table {
    Mapping memory;
    std::uint32_t used = 0;
    std::uint32_t high = 0;     // places that were ever in use
    std::uint32_t ready = 0;    // places with memory behind them
    std::uint32_t added = 0;    // by the transaction under way
    std::uint32_t lacking = 0;  // places that the transaction did not get
    // Places below `high` that are free, and then those whose records the transaction erases.
    std::vector<std::uint32_t> gone;
    std::size_t free = 0;
    std::uint32_t erased() const { return static_cast<std::uint32_t>(gone.size() - free); }
    void add_free(std::uint32_t place);
    std::uint32_t take_free();
  };
  static Head head_for(std::uint64_t epoch, const std::array<std::uint32_t, kMostKinds>& capacities,
                       std::uint64_t journal_bytes);

  static std::uint32_t bit(std::uint32_t number) { return std::uint32_t{1} << (number - 1); }
  // Calls it for each table whose bit is set.
  template <class Body>
  static void each_bit(std::uint32_t bits, Body body) {
    for (; bits != 0; bits &= bits - 1) body(static_cast<std::uint32_t>(std::countr_zero(bits)) + 1);
  }
  Head head_of_copy() const;
  void expect(std::uint32_t number);
  bool journal_for_request();
  void run_short();
  std::uint32_t put(std::uint32_t number, std::uint32_t place, std::byte* record);
  void erase(std::uint32_t number, std::uint32_t place);
  void append(std::uint32_t number, std::uint32_t place, const std::byte* record);
  bool places_room(std::uint32_t number, std::uint32_t wanted);
  bool journal_room(std::uint64_t bytes);  // memory behind so much of it
  // Memory behind so many bytes at `from` of a part of the file, which is mapped further if need be.
  bool give_memory(Mapping& part, std::uint64_t part_at, std::uint64_t most, std::uint64_t from, std::uint64_t bytes);
  void shrink_journal();
  std::byte* record_at(std::uint32_t number, std::uint32_t place) const {
    return tables_[number - 1].memory.data() + std::uint64_t{place} * head_.tables[number - 1].size;
  }
  Words& words() const { return *reinterpret_cast<Words*>(first_.data() + kWordsAt); }

  // One request that is no batch adds a few records of a kind at most.
  std::uint32_t most_of_request(std::uint32_t number) const {
    return kRecordKinds[number - 1].batched ? of_request_ : std::min(of_request_, std::uint32_t{8});
  }
  std::uint32_t of_request(std::uint32_t number) const {
    return kRecordKinds[number - 1].on_demand && (expected_ & bit(number)) == 0 ? 0 : most_of_request(number);
  }

  std::uint32_t of_request_ = 0, capacity_ = 0;
  Fd fd_;
  Mapping first_, journal_;  // head and words; the journal
  Head head_;                // the image's own is never read
  std::array<Table, kRecordKinds.size()> tables_;
  std::uint32_t totals_place_ = kNowhere;
  std::uint64_t written_ = 0;        // bytes of the transaction under way, or of the last one if it failed
  std::uint64_t journal_ready_ = 0;  // bytes with memory behind them
  std::uint64_t journal_kept_ = 0;   // bytes of these that are never given back
  bool erased_ = false;              // something waits for the next commit
  bool short_ = false;               // the transaction under way, or the last one, did not get its memory
  // Most requests change a few tables. So work that is for all of them is done for those whose bit is set.
  static_assert(kRecordKinds.size() <= 32);
  std::uint32_t counts_ = 0;  // the number of records, or of places that were ever in use, is not that in the books
  std::uint32_t unsure_ = UINT32_MAX;  // there may be too little room for the next request
  bool journal_unsure_ = true;
  std::uint32_t expected_ = 0;  // kinds on demand of which requests add records
};

}  // namespace shmb::daemon::books
