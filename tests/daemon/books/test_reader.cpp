// SPDX-License-Identifier: Apache-2.0
// The reader of the books: what it makes of damage, of contradictions, of other versions, and of books of the first
// version.
#include <algorithm>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iterator>
#include <set>
#include <sstream>

#include "tests/daemon/books/store_fixture.hpp"
#include "tests/harness/each_instruction.hpp"
#include "tests/harness/skip.hpp"

using namespace shmb;
using namespace shmb::daemon::books;
using namespace shmb::daemon::books::test;

namespace {

// An image in text: its size, its 16-byte rows that are not zero, and what a reader prints of it.
std::string as_text(const std::vector<std::byte>& bytes, const std::string& read) {
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  std::ostringstream out;
  out << "# SPDX-License-Identifier: Apache-2.0\n# The books as version 1." << head.minor
      << " of their format wrote them, and what they say. Readers of major 1 read them for ever.\nbytes "
      << bytes.size() << '\n'
      << std::hex << std::setfill('0');
  for (std::size_t row = 0; row < bytes.size(); row += 16) {
    if (std::all_of(&bytes[row], &bytes[row] + 16, [](std::byte byte) { return byte == std::byte{0}; })) continue;
    out << std::setw(4) << row << ':';
    for (std::size_t i = 0; i < 16; ++i) out << ' ' << std::setw(2) << std::to_integer<unsigned>(bytes[row + i]);
    out << '\n';
  }
  return out.str() + "text\n" + read;
}

std::vector<std::byte> image_in(const std::string& text) {
  std::istringstream lines(text);
  std::vector<std::byte> bytes;
  for (std::string line; std::getline(lines, line) && line != "text";) {
    if (line.starts_with("bytes ")) bytes.resize(std::stoul(line.substr(6)));
    const std::size_t colon = line.find(':');
    if (line.starts_with('#') || colon == line.npos) continue;
    std::istringstream row(line.substr(colon + 1));
    std::size_t at = std::stoul(line.substr(0, colon), nullptr, 16);
    for (unsigned byte = 0; row >> std::hex >> byte;) bytes.at(at++) = static_cast<std::byte>(byte);
  }
  return bytes;
}

std::string golden(unsigned minor) {
  std::ifstream file(SHMB_GOLDEN_BOOKS "/1_" + std::to_string(minor) + ".txt");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("a reader makes a clear report of each flipped bit, or finds the same records") {
  Books books;
  auto copied = books.store.copy();
  REQUIRE(copied);
  std::vector<std::byte> bytes = bytes_of(*copied);
  const std::string right = [&] {
    auto fresh = bytes;
    return read(fresh).text;
  }();
  // Of what lies behind the records up to the next page, which nobody reads, one word.
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  std::vector<bool> looked_at(bytes.size(), false);
  const auto look_at = [&](std::size_t from, std::size_t end) {
    std::fill(looked_at.begin() + static_cast<std::ptrdiff_t>(from),
              looked_at.begin() + static_cast<std::ptrdiff_t>(end), true);
  };
  look_at(0, kTablesAt);
  for (std::uint32_t i = 0; i < head.kinds; ++i) {
    const TableHead& table = head.tables[i];
    look_at(table.offset, table.offset + std::size_t{table.size} * table.capacity + sizeof(std::uint64_t));
  }
  long reported = 0, same = 0;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    if (!looked_at[bit / 8]) continue;
    const auto mask = std::byte{1} << (bit % 8);
    bytes[bit / 8] ^= mask;
    auto fresh = bytes;
    const Found found = read(fresh);
    bytes[bit / 8] ^= mask;
    if (!found.refused.empty() || !found.problems.empty()) ++reported;
    else if (found.text == right) ++same;
    else FAIL("bit " << bit << " changes the records, and nothing is reported:\n" << found.text);
  }
  CHECK(reported > 8 * 500);
  CHECK(same > 0);  // behind the records
  MESSAGE((reported + same) << " bits flipped: " << reported << " reported, " << same << " without effect");
}

TEST_CASE("a reader makes a clear report of each flipped bit of a journal that is committed and not in place") {
  // As a writer leaves it that is killed right after its commit.
  Books books;
  std::vector<std::byte> left;
  const auto map = Mapping::map(books.store.descriptor(), 0, books.store.bytes(), Access::read);
  REQUIRE(map);
  const auto seen = harness::at_each_instruction(
      [&](const std::function<void()>& start) {
        start();
        books.store.begin();
        books.store.put(books.second, region(8));
        books.store.totals.last_region = 8;
        (void)books.store.commit();
      },
      [&] {
        const auto& words = *reinterpret_cast<const Words*>(map->data() + kWordsAt);
        if (load(words.committed) == load(words.applied)) return true;
        left.assign(map->data(), map->data() + map->size());
        return false;
      });
  if (!seen.traced) SKIP_CASE("no ptrace here");
  REQUIRE_FALSE(left.empty());
  Head head;
  std::memcpy(&head, left.data(), sizeof head);
  auto right = left;
  const std::string text = read(right).text;
  CHECK(text.find("region id=8") != text.npos);
  long reported = 0;
  const std::size_t end =
      head.journal + sizeof(JournalHead) + 2 * sizeof(EntryHead) + sizeof(RegionRecord) + sizeof(TotalsRecord);
  for (std::size_t bit = head.journal * 8; bit < end * 8; ++bit) {
    auto fresh = left;
    fresh[bit / 8] ^= std::byte{1} << (bit % 8);
    const Found found = read(fresh);
    CHECK(found.refused != "");
    reported += !found.refused.empty();
  }
  // What `behind` says is over with that commit.
  for (std::size_t bit = kWordsAt * 8; bit < (kWordsAt + offsetof(Words, behind)) * 8; ++bit) {
    auto fresh = left;
    fresh[bit / 8] ^= std::byte{1} << (bit % 8);
    const Found found = read(fresh);
    if (found.refused.empty()) CHECK(found.problems.size() + (found.text != text) > 0);
  }
  MESSAGE(reported << " flipped bits of a journal, all reported");
}

TEST_CASE("a reader refuses an image that is cut off at any length") {
  Books books;
  auto copied = books.store.copy();
  REQUIRE(copied);
  const std::vector<std::byte> bytes = bytes_of(*copied);
  std::set<std::string> reasons;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    const Found found = read(cut);
    if (found.refused.empty()) FAIL("an image of " << length << " bytes was read");
    reasons.insert(found.refused.substr(0, 40));
  }
  CHECK(reasons.size() >= 2);
}

TEST_CASE("a reader refuses parts that overlap, because the journal would overwrite itself while it is put in place") {
  Books books;
  auto copied = books.store.copy();
  REQUIRE(copied);
  std::vector<std::byte> bytes = bytes_of(*copied);
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  SUBCASE("a table in the journal") { head.tables[2].offset = head.journal; }
  SUBCASE("a table in another one") { head.tables[2].offset = head.tables[1].offset; }
  head.check = check_of(head, kMagic);
  std::memcpy(bytes.data(), &head, sizeof head);
  CHECK(read(bytes).refused.find("overlap") != std::string::npos);
}

TEST_CASE("a reader says what contradicts itself") {
  Books books;
  const auto problems_after = [&](const std::function<void(Store&)>& change) {
    books.store.begin();
    change(books.store);
    CHECK(books.store.commit());
    auto bytes = bytes_of(books.store);
    const Found found = read(bytes);
    REQUIRE(found.problems.size() == 1);
    return found.problems.front();
  };
  SUBCASE("two records of one id") {
    const auto said = problems_after([&](Store& store) {
      RegionRecord twin = region(7);
      twin.memory = -1;
      store.put(books.second, twin);
    });
    CHECK(said == "region 7 (place 1): another record has this id");
  }
  SUBCASE("one descriptor of two owners") {
    const auto said = problems_after([&](Store& store) {
      RegionRecord other = region(6);
      other.memory = 10;
      store.put(books.second, other);
    });
    CHECK(said == "region 6 (place 1): descriptor 10 belongs to session 1 (place 0)");
  }
  SUBCASE("a name without a region") {
    const auto said = problems_after([&](Store& store) {
      store.erase<LeaseRecord>(books.held);
      store.erase<TicketRecord>(books.sent);
      store.erase<WatchRecord>(books.seen);
      store.erase<SegmentRecord>(books.cut);
      store.erase<GpuMemoryRecord>(books.exported);
      store.erase<GpuChunkRecord>(books.chunk);
      store.erase<HoldRecord>(books.carried);
      store.erase<RegionRecord>(books.first);
    });
    CHECK(said == "name 7: there is no region 7");
  }
  SUBCASE("a ticket that ends with a session that is not there") {
    const auto said = problems_after([&](Store& store) {
      TicketRecord bound = ticket(4, 7, 1);
      bound.with = 2;
      store.put(books.sent, bound);
    });
    CHECK(said == "ticket 4: there is no session 2");
  }
  SUBCASE("a lease of a session that is not there") {
    const auto said = problems_after([&](Store& store) { store.put(books.held, lease(3, 2, 7)); });
    CHECK(said == "lease 3: there is no session 2");
  }
  SUBCASE("a watch by a ticket that is not there") {
    const auto said = problems_after([&](Store& store) {
      WatchRecord by = watch(5, 1, 7);
      by.ticket = 3;
      store.put(books.seen, by);
    });
    CHECK(said == "watch 5: there is no ticket 3");
  }
  SUBCASE("a doorbell that is a region's memory") {
    const auto said = problems_after([&](Store& store) {
      ParticipantRecord other = participant(2, 5, 1);
      other.doorbell = 107;
      store.put(books.joined, other);
    });
    CHECK(said == "participant 2 (place 0): descriptor 107 belongs to region 7 (place 0)");
  }
  SUBCASE("an id that was never given out") {
    const auto said = problems_after([&](Store& store) { store.put(books.second, region(8)); });
    CHECK(said == "region 8: the last id that was given out is 7");
  }
}

TEST_CASE("another format is refused with both versions, and a later one of the same major is read") {
  Books books;
  const auto with_head = [&](const std::function<void(Head&)>& change) {
    std::vector<std::byte> bytes = bytes_of(books.store);
    Head head;
    std::memcpy(&head, bytes.data(), sizeof head);
    change(head);
    head.check = check_of(head, kMagic);
    std::memcpy(bytes.data(), &head, sizeof head);
    return read(bytes);
  };
  CHECK(with_head([](Head& head) { head.major = 2; }).refused ==
        "the books cannot be read: their format is 2." + std::to_string(kMinor) +
            ", and this program reads 1.x: use the version that wrote them");
  CHECK(with_head([](Head& head) { head.magic = 1; }).refused.find("no file of books") != std::string::npos);
  CHECK(with_head([](Head& head) { head.tables[2].capacity = UINT32_MAX; }).refused.find("table 3") !=
        std::string::npos);
  CHECK(with_head([](Head& head) { head.kinds = 33; }).refused.find("33 kinds") != std::string::npos);
  CHECK(with_head([](Head& head) { head.journal_bytes = 8; }).refused.find("journal") != std::string::npos);
  // A kind of record that this version does not know is left alone.
  const Found later = with_head([](Head& head) {
    head.minor = kMinor + 1;
    head.tables[head.kinds] = {64, 0, head.tables[0].offset};
    ++head.kinds;
  });
  CHECK(later.refused == "");
  CHECK(later.text.find("books 1." + std::to_string(kMinor + 1) + " transaction=1\n") == 0);
  CHECK(later.text.find("region id=7") != later.text.npos);
}

TEST_CASE("books of each format up to today's are read as they were written") {
  for (unsigned minor = 0; minor <= kMinor; ++minor) {
    CAPTURE(minor);
    const std::string text = golden(minor);
    auto bytes = image_in(text);
    REQUIRE_FALSE(bytes.empty());
    const Found found = read(bytes);
    CHECK(found.refused == "");
    CHECK(found.problems.empty());
    CHECK(found.text.find("books 1." + std::to_string(minor) + " ") == 0);
    CHECK(as_text(bytes, found.text) == text);
  }
}

TEST_CASE("today's writer writes the format of its number") {
  Books books;
  auto copied = books.store.copy();
  REQUIRE(copied);
  auto bytes = bytes_of(*copied);
  const std::string now = as_text(bytes, read(bytes).text);
  CHECK(now == golden(kMinor));
}
