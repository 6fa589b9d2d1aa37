// SPDX-License-Identifier: Apache-2.0
// See reader.hpp. A field is read by the table of its kind of record, so that a record of an older version, which is
// shorter, has zeros for what it lacks.
#include "daemon/books/reader.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/books/image.hpp"

namespace shmb::daemon::books {
namespace {

constexpr std::size_t kProblemsTold = 100;
constexpr std::uint32_t kTotals = TotalsRecord::kNumber;

std::unexpected<Error> unreadable(const std::string& why) {
  return error(Status::broken, "the books cannot be read: " + why);
}

std::string number(std::uint64_t value) { return std::to_string(value); }

// Whether [offset, offset + bytes) lies behind the head and in the image.
bool inside(const Head& head, std::uint64_t offset, std::uint64_t bytes) {
  return offset >= kTablesAt && offset <= head.bytes && bytes <= head.bytes - offset && offset % 8 == 0;
}

// A journal that shares memory with a table would be overwritten by its own records while they are put in place.
bool overlap(const Head& head) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> parts{{head.journal, head.journal_bytes}};
  for (const TableHead& table : std::span(head.tables).first(head.kinds))
    parts.emplace_back(table.offset, std::uint64_t{table.size} * table.capacity);
  std::ranges::sort(parts);
  for (std::size_t i = 1; i < parts.size(); ++i)
    if (parts[i - 1].first + parts[i - 1].second > parts[i].first) return true;
  return false;
}

// Whether the journal holds just this transaction. The sentence says what is wrong.
std::string journal_fault(const Parts& parts, const Head& head, std::uint64_t transaction) {
  JournalHead journal;
  if (parts.journal.size() < sizeof journal) return "the journal has no memory";
  std::memcpy(&journal, parts.journal.data(), sizeof journal);
  if (journal.check != check_of(journal, kMagic)) return "the checksum of the journal's head is wrong";
  if (journal.transaction != transaction)
    return "transaction " + number(transaction) + " is committed, and the journal holds " + number(journal.transaction);
  if (journal.bytes > parts.journal.size() - sizeof journal || journal.bytes % 8 != 0)
    return "the journal says that it is longer than its memory";
  const std::byte* at = parts.journal.data() + sizeof journal;
  for (std::uint64_t left = journal.bytes; left != 0;) {
    EntryHead entry;
    if (left < sizeof entry) return "the last entry of the journal is cut off";
    std::memcpy(&entry, at, sizeof entry);
    if (entry.check != check_of(entry, transaction)) return "the checksum of an entry of the journal is wrong";
    if (entry.number == 0 || entry.number > head.kinds) return "an entry of the journal is of no kind of record";
    const TableHead& table = head.tables[entry.number - 1];
    if (entry.place >= table.capacity || entry.place >= parts.tables[entry.number - 1].size() / table.size ||
        (entry.size != 0 && entry.size != table.size) || entry.size > left - sizeof entry)
      return "an entry of the journal does not fit its table";
    std::uint64_t check = 0;
    const std::byte* record = at + sizeof entry;
    if (entry.size != 0) std::memcpy(&check, record + entry.size - sizeof check, sizeof check);
    if (entry.size != 0 && check != check_of_record(entry.number, entry.place, record, entry.size))
      return "the checksum of a record in the journal is wrong";
    at += sizeof entry + entry.size;
    left -= sizeof entry + entry.size;
  }
  return {};
}

// A field of an unsigned type, or the bits of another one. 0, or no descriptor, where the record has no such field.
std::uint64_t value_of(const std::byte* record, std::uint32_t size, const Field& field, std::size_t index = 0) {
  std::uint64_t value = 0;
  const std::size_t at = field.offset + index * field.size;
  if (at + field.size + sizeof value > size) return field.type == Type::descriptor ? UINT64_MAX : 0;
  std::memcpy(&value, record + at, std::min<std::size_t>(field.size, sizeof value));
  return value;
}

const Field& field_of(std::uint32_t kind, std::string_view name) {
  return *std::ranges::find(kRecordKinds[kind - 1].fields, name, &Field::name);
}

std::string_view text_of(const std::byte* record, std::uint32_t size, const Field& field) {
  if (field.offset + std::size_t{field.count} + sizeof(std::uint64_t) > size) return {};
  const std::string_view all(reinterpret_cast<const char*>(record + field.offset), field.count);
  return all.substr(0, all.find('\0'));
}

std::string escaped(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    constexpr std::string_view digits = "0123456789abcdef";
    if (byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\') out += c;
    else out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
  }
  return out + '"';
}

bool all_zero(const std::byte* bytes, std::size_t size) {
  return std::all_of(bytes, bytes + size, [](std::byte byte) { return byte == std::byte{0}; });
}

// The records of an image whose head is known to be right.
class Records {
 public:
  struct Place {
    std::uint32_t number, place;
    const std::byte* record;
  };
  explicit Records(const Parts& parts) : parts_(parts) {
    std::memcpy(&head, parts.front.data(), sizeof head);
    kinds = std::min<std::uint32_t>(head.kinds, kRecordKinds.size());
  }
  const std::byte* at(std::uint32_t number, std::uint32_t place) const {
    return parts_.tables[number - 1].data() + std::uint64_t{place} * size(number);
  }
  std::uint32_t size(std::uint32_t number) const { return head.tables[number - 1].size; }
  bool sound(const Place& there) const {
    std::uint64_t check = 0;
    std::memcpy(&check, there.record + size(there.number) - sizeof check, sizeof check);
    return check == check_of_record(there.number, there.place, there.record, size(there.number));
  }
  // All places that may be in use, of the kinds that this version knows.
  template <class Body>
  void each(Body body) const {
    for (std::uint32_t number = 1; number <= kinds; ++number) each_of(number, body);
  }
  template <class Body>
  void each_of(std::uint32_t number, Body body) const {
    const std::uint32_t end = places(number);
    for (std::uint32_t place = 0; place < end; ++place) body(Place{number, place, at(number, place)});
  }

  bool has_totals() const {
    return kinds >= kTotals && there(kTotals) != 0 && id_of(at(kTotals, 0)) != 0 && sound({kTotals, 0, at(kTotals, 0)});
  }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (std::uint32_t number = 1; number <= kinds; ++number) sum += std::uint64_t{places(number)} * size(number);
    return sum;
  }

  Head head;
  std::uint32_t kinds = 0;  // of those that this version knows

 private:
  // With memory behind them.
  std::uint32_t there(std::uint32_t number) const {
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(head.tables[number - 1].capacity, parts_.tables[number - 1].size() / size(number)));
  }
  // The totals say how many. If they cannot be believed, all are looked at.
  std::uint32_t places(std::uint32_t number) const {
    if (!has_totals()) return there(number);
    const std::uint64_t high = value_of(at(kTotals, 0), size(kTotals), field_of(kTotals, "high"), number - 1);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(there(number), high));
  }

  const Parts& parts_;
};

std::string who_is(const Records::Place& at) {
  return std::string(kRecordKinds[at.number - 1].name) + " " + number(id_of(at.record)) + " (place " +
         number(at.place) + ")";
}

// Numbers that are all added first, and asked for afterwards. Mostly they come in order.
class Numbers {
 public:
  void add(std::uint64_t number) {
    sorted_ = sorted_ && (all_.empty() || all_.back() <= number);
    all_.push_back(number);
  }
  void sort() {
    if (!std::exchange(sorted_, true)) std::ranges::sort(all_);
  }
  bool contains(std::uint64_t number) const { return std::ranges::binary_search(all_, number); }
  bool has_twice() const { return std::ranges::adjacent_find(all_) != all_.end(); }
  bool has_twice(std::uint64_t number) const { return std::ranges::equal_range(all_, number).size() > 1; }
  bool empty() const { return all_.empty(); }
  std::uint64_t highest() const { return all_.back(); }

 private:
  std::vector<std::uint64_t> all_;
  bool sorted_ = true;
};

}  // namespace

Result<Head> read_head(std::span<const std::byte> front, std::uint64_t bytes) {
  if (front.size() < kTablesAt)
    return unreadable("they have " + number(front.size()) + " bytes, and their head alone has " + number(kTablesAt));
  Head head;
  std::memcpy(&head, front.data(), sizeof head);
  if (head.magic != kMagic) return unreadable("this is no file of books: those begin with the word shmbooks");
  if (head.major != kMajor)
    return unreadable("their format is " + number(head.major) + "." + number(head.minor) + ", and this program reads " +
                      number(kMajor) + ".x: use the version that wrote them");
  if (head.check != check_of(head, kMagic)) return unreadable("the checksum of their head is wrong");
  if (head.kinds > kMostKinds || (head.minor <= kMinor && head.kinds > kRecordKinds.size()))
    return unreadable("they have " + number(head.kinds) + " kinds of records, more than their format has");
  if (head.bytes != bytes)
    return unreadable("their head says " + number(head.bytes) + " bytes, and there are " + number(bytes));
  for (std::uint32_t i = 0; i < head.kinds; ++i) {
    const TableHead& table = head.tables[i];
    if (table.size < 16 || table.size % 8 != 0 || table.size > kTablesAt ||
        !inside(head, table.offset, std::uint64_t{table.size} * table.capacity))
      return unreadable("table " + number(i + 1) + " does not lie inside of them");
  }
  if (head.journal_bytes < sizeof(JournalHead) || !inside(head, head.journal, head.journal_bytes))
    return unreadable("the journal does not lie inside of them");
  if (overlap(head)) return unreadable("two of their tables, or a table and the journal, overlap");
  return head;
}

Result<Reader> Reader::open(std::span<std::byte> memory) {
  SHMB_TRY(head, read_head(memory, memory.size()));
  Parts parts{memory.first(kTablesAt), {}, memory.subspan(head.journal, head.journal_bytes)};
  for (std::uint32_t i = 0; i < head.kinds; ++i)
    parts.tables[i] =
        memory.subspan(head.tables[i].offset, std::uint64_t{head.tables[i].size} * head.tables[i].capacity);
  return open(head, parts);
}

Result<Reader> Reader::open(const Head& head, const Parts& parts) {
  auto& words = *reinterpret_cast<Words*>(parts.front.data() + kWordsAt);
  const std::uint64_t committed = load(words.committed), applied = load(words.applied);
  if (committed != applied) {
    if (committed != applied + 1)
      return unreadable("transaction " + number(committed) + " is committed, and the last one in place is " +
                        number(applied));
    if (const std::string fault = journal_fault(parts, head, committed); !fault.empty()) return unreadable(fault);
    apply_journal(parts.journal.data(), head, [&](std::uint32_t number, std::uint32_t place) {
      return parts.tables[number - 1].data() + std::uint64_t{place} * head.tables[number - 1].size;
    });
    publish(words.behind, 0);
    publish(words.applied, committed);
  }
  return Reader(parts);
}

std::vector<std::string> Reader::problems() const {
  const Records records(parts_);
  std::vector<std::string> out;
  std::size_t more = 0;
  const auto tell = [&](std::string sentence) {
    if (out.size() < kProblemsTold) out.push_back(std::move(sentence));
    else ++more;
  };
  const auto& words = *reinterpret_cast<const Words*>(parts_.front.data() + kWordsAt);
  if (const std::uint64_t behind = load(words.behind); behind == 1)
    tell("there was no memory for what the broker has done since transaction " + number(load(words.committed)) +
         ": replies and events have left that the records do not show");
  else if (behind != 0) tell("the word `behind` is " + number(behind) + ", neither 0 nor 1");
  std::array<Numbers, kMostKinds> ids;
  std::vector<std::pair<std::int32_t, Records::Place>> descriptors;
  std::array<std::uint32_t, kMostKinds> counted{};
  records.each([&](const Records::Place& at) {
    const RecordKind& kind = kRecordKinds[at.number - 1];
    const std::uint32_t size = records.size(at.number);
    const std::uint64_t id = id_of(at.record);
    const auto who = [&] { return who_is(at); };
    if (id == 0) {
      if (!all_zero(at.record, size))
        tell("place " + number(at.place) + " of the records of kind " + std::string(kind.name) + " is not empty");
      return;
    }
    ++counted[at.number - 1];
    if (!records.sound(at)) return tell(who() + ": the checksum is wrong");
    ids[at.number - 1].add(id);
    for (const Field& field : kind.fields) {
      const std::uint64_t value = value_of(at.record, size, field);
      if (field.type == Type::truth && value > 1)
        tell(who() + ": " + std::string(field.name) + " is " + number(value) + ", neither 0 nor 1");
      if (field.type != Type::descriptor) continue;
      const auto fd = static_cast<std::int32_t>(value);
      if (fd >= 0) descriptors.emplace_back(fd, at);
    }
  });
  std::ranges::stable_sort(descriptors, {}, &std::pair<std::int32_t, Records::Place>::first);
  for (std::size_t i = 1; i < descriptors.size(); ++i) {
    const auto& [fd, at] = descriptors[i];
    const auto& [before, owner] = descriptors[i - 1];
    if (fd == before) tell(who_is(at) + ": descriptor " + std::to_string(fd) + " belongs to " + who_is(owner));
  }
  for (std::uint32_t kind = 1; kind <= records.kinds; ++kind) {
    Numbers& known = ids[kind - 1];
    known.sort();
    if (kRecordKinds[kind - 1].ids_repeat || !known.has_twice()) continue;
    std::set<std::uint64_t> seen;
    records.each_of(kind, [&](const Records::Place& at) {
      const std::uint64_t id = id_of(at.record);
      if (id != 0 && known.has_twice(id) && !seen.insert(id).second) tell(who_is(at) + ": another record has this id");
    });
  }
  records.each([&](const Records::Place& at) {
    if (id_of(at.record) == 0) return;
    const RecordKind& kind = kRecordKinds[at.number - 1];
    for (const Field& field : kind.fields) {
      if (field.refers == 0) continue;
      const std::uint64_t whose = value_of(at.record, records.size(at.number), field);
      if (whose != 0 && !ids[field.refers - 1].contains(whose))
        tell(std::string(kind.name) + " " + number(id_of(at.record)) + ": there is no " +
             std::string(kRecordKinds[field.refers - 1].name) + " " + number(whose));
    }
  });
  if (counted[kTotals - 1] != 1) {
    tell("there is not one record of totals, but " + number(counted[kTotals - 1]));
  } else {
    const std::byte* const record = records.at(kTotals, 0);
    const std::uint32_t size = records.size(kTotals);
    for (std::uint32_t kind = 1; kind <= records.kinds; ++kind)
      if (const std::uint64_t said = value_of(record, size, field_of(kTotals, "count"), kind - 1);
          said != counted[kind - 1])
        tell("there are " + number(counted[kind - 1]) + " records of kind " + std::string(kRecordKinds[kind - 1].name) +
             ", and the totals say " + number(said));
    for (std::uint32_t kind = 1; kind <= records.kinds; ++kind) {
      const std::string_view counter = kRecordKinds[kind - 1].counter;
      if (counter.empty() || ids[kind - 1].empty()) continue;
      const std::uint64_t most = value_of(record, size, field_of(kTotals, counter));
      if (const std::uint64_t highest = ids[kind - 1].highest(); highest > most)
        tell(std::string(kRecordKinds[kind - 1].name) + " " + number(highest) + ": the last id that was given out is " +
             number(most));
    }
  }
  if (more != 0) out.push_back("and " + number(more) + " more");
  return out;
}

std::uint64_t Reader::epoch() const { return Records(parts_).head.epoch; }

std::optional<std::uint64_t> Reader::bytes_in_use() const {
  const Records records(parts_);
  return records.has_totals() ? std::optional(records.bytes()) : std::nullopt;
}

void Reader::each_place(std::uint32_t number, const std::function<void(const std::byte*, std::size_t)>& body) const {
  const Records records(parts_);
  if (number > records.kinds) return;
  records.each_of(number, [&](const Records::Place& at) {
    if (id_of(at.record) != 0) body(at.record, records.size(number));
  });
}

std::string Reader::text() const {
  const Records records(parts_);
  const auto& words = *reinterpret_cast<const Words*>(parts_.front.data() + kWordsAt);
  std::string out = "books " + number(records.head.major) + "." + number(records.head.minor) +
                    " transaction=" + number(load(words.committed)) + "\n";
  records.each([&](const Records::Place& at) {
    if (id_of(at.record) == 0) return;
    const RecordKind& kind = kRecordKinds[at.number - 1];
    const std::uint32_t size = records.size(at.number);
    out += kind.name;
    for (const Field& field : kind.fields) {
      const std::uint64_t value = value_of(at.record, size, field);
      std::string shown;
      switch (field.type) {
        case Type::number:
        case Type::truth:
          if (value != 0) shown = number(value);
          break;
        case Type::signed_number:
          if (value != 0)
            shown =
                std::to_string(field.size == 4 ? static_cast<std::int32_t>(value) : static_cast<std::int64_t>(value));
          break;
        case Type::descriptor:
          if (static_cast<std::int32_t>(value) >= 0) shown = number(value);
          break;
        case Type::secret:
          break;
        case Type::text:
          if (const auto text = text_of(at.record, size, field); !text.empty()) shown = escaped(text);
          break;
        case Type::numbers:
          // The totals have room for kinds of records that there are not yet.
          for (std::size_t i = 0; i < (at.number == kTotals ? records.kinds : field.count); ++i)
            shown += (i == 0 ? "" : ",") + number(value_of(at.record, size, field, i));
          break;
      }
      if (!shown.empty()) out += " " + std::string(field.name) + "=" + shown;
    }
    out += '\n';
  });
  return out;
}

}  // namespace shmb::daemon::books
