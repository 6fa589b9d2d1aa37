// SPDX-License-Identifier: Apache-2.0
// The books in shared memory, without a broker: what is written, what a reader in another process finds after a kill at
// each instruction, and what happens when there is no memory, or no place, for more.
#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>

#include "tests/daemon/books/store_fixture.hpp"
#include "tests/harness/each_instruction.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/skip.hpp"

using namespace shmb;
using namespace shmb::daemon::books;
using namespace shmb::daemon::books::test;

TEST_CASE("what was committed is read, and what was not is not") {
  Books books;
  const std::string before = text_of(books.store);
  CHECK(before.find("session id=1 line=1 uid=1000 pid=101 socket=10 phase=2 library=\"demo 1.0\"\n") != before.npos);
  CHECK(before.find("region id=7 group=1 length=4096 bytes=4096 keep=-1 generation=1 memory=107 heap=1 hugetlb=1\n") !=
        before.npos);
  CHECK(before.find("name id=7 group=1 text=\"weights\"\n") != before.npos);
  CHECK(before.find("count=1,1,1,1,1,1") != before.npos);
  CHECK(before.find("a5") == before.npos);

  books.store.begin();
  books.store.put(books.first, region(7, 8192));
  books.store.put(books.second, region(8));
  CHECK(text_of(books.store) == before);
  books.store.totals.last_region = 8;
  CHECK(books.store.commit());
  const std::string after = text_of(books.store);
  CHECK(after.find("region id=7 group=1 length=8192 bytes=8192") != after.npos);
  CHECK(after.find("region id=8") != after.npos);
  CHECK(books.store.count(RegionRecord::kNumber) == 2);

  books.store.erase<RegionRecord>(books.first);
  books.erase_of_region();
  CHECK(books.first == kNowhere);
  CHECK(text_of(books.store) == after);
  books.store.begin();
  CHECK(books.store.commit());
  const std::string end = text_of(books.store);
  CHECK(end.find("region id=7") == end.npos);
  CHECK(end.find("name id=") == end.npos);
  CHECK(books.store.count(NameRecord::kNumber) == 0);
  // The place is given out again.
  books.store.begin();
  books.store.put(books.first, region(8, 12288));
  CHECK(books.first == 0);
}

TEST_CASE("a commit without a change writes nothing") {
  Books books;
  const auto before = bytes_of(books.store);
  books.store.begin();
  books.store.put(books.first, region(7));
  CHECK(books.store.commit());
  CHECK(books.store.transactions() == 1);
  CHECK(bytes_of(books.store) == before);
}

TEST_CASE("a place is not given out again before its end is committed") {
  Books books;
  const std::uint32_t place = books.first;
  books.store.erase<RegionRecord>(books.first);
  books.store.begin();
  books.store.put(books.second, region(8));
  CHECK(books.second != place);
  // One that never came into the books is free at once.
  std::uint32_t third = kNowhere;
  books.store.put(third, region(9));
  const std::uint32_t there = third;
  books.store.erase<RegionRecord>(third);
  std::uint32_t fourth = kNowhere;
  books.store.begin();
  books.store.put(fourth, region(10));
  CHECK(fourth == there);
}

TEST_CASE("killed at any instruction, the writer leaves the old state or the new one to another process") {
  struct Step {
    const char* what;
    std::function<void(Books&)> change;
    bool full = false;
  };
  std::uint32_t other = kNowhere;
  const Step steps[] = {
      {"a record is added", [](Books& b) { b.store.put(b.second, region(8)), b.store.totals.last_region = 8; }},
      {"a record is changed", [](Books& b) { b.store.put(b.first, region(7, 1 << 20)); }},
      {"some are added, some are changed, two are freed",
       [&](Books& b) {
         b.store.erase<RegionRecord>(b.first);
         b.store.erase<NameRecord>(b.called);
         b.store.put(b.held, lease(3, 2, 8));
         b.store.put(b.sent, ticket(4, 8, 2));
         b.store.put(b.seen, watch(5, 2, 8));
         b.store.put(b.cut, segment(8, 5));
         b.store.put(b.exported, gpu_memory(8, 2, 3));
         b.store.put(b.chunk, gpu_chunk(1, 8));
         b.store.put(b.carried, hold(7, 6, 8));
         b.store.put(b.maker, session(1));
         b.store.put(other, session(2));
         b.store.put(b.second, region(8, 64));
         b.store.totals.last_region = 8;
         b.store.totals.last_session = 2;
       }},
      {"all is freed",
       [](Books& b) {
         b.store.erase<SessionRecord>(b.maker);
         b.store.erase<PacketsRecord>(b.numbered);
         b.store.erase<AnswerRecord>(b.answered);
         b.store.erase<RegionRecord>(b.first);
         b.store.erase<GroupRecord>(b.owner);
         b.erase_of_group();
         b.erase_of_region();
       }},
      {"in a full table a record gets the place of another",
       [](Books& b) {
         b.store.erase<RegionRecord>(b.first);
         b.erase_of_region();
         b.store.put(b.second, region(40));
       },
       true},
  };
  long stops = 0, images = 0;
  for (const Step& step : steps) {
    CAPTURE(step.what);
    Books books;
    if (step.full) books.fill();
    const std::string before = text_of(books.store);
    const auto map = Mapping::map(books.store.descriptor(), 0, books.store.bytes(), Access::read);
    REQUIRE(map);
    std::vector<std::byte> last = bytes_of(books.store);
    std::string after, wrong;
    bool by_journal = false;  // the reader found the new state where the tables still had the old one
    const auto seen = harness::at_each_instruction(
        [&](const std::function<void()>& start) {
          start();
          books.store.begin();
          step.change(books);
          (void)books.store.commit();
        },
        [&] {
          if (std::memcmp(last.data(), map->data(), last.size()) == 0) return true;
          ++images;
          last.assign(map->data(), map->data() + map->size());
          auto bytes = last;
          const Found found = read(bytes);
          if (!found.refused.empty() || !found.problems.empty()) {
            wrong = found.refused.empty() ? found.problems.front() : found.refused;
          } else if (found.text != before && after.empty()) {
            after = found.text;
            by_journal = bytes != last;
          } else if (found.text != (after.empty() ? before : after)) {
            wrong = "a third state:\n" + found.text;
          }
          return wrong.empty();
        });
    if (!seen.traced) SKIP_CASE("no ptrace here");
    CHECK(wrong == "");
    CHECK(seen.status == 0);
    CHECK(after != "");
    CHECK(by_journal);
    stops += seen.stops;
  }
  MESSAGE("killed at " << stops << " instructions, which left " << images << " images");
}

TEST_CASE("a copy has no secrets, and cannot be changed") {
  Books books;
  auto copied = books.store.copy();
  REQUIRE(copied);
  CHECK(sys::file_facts(copied->get())->size == books.store.copy_bytes());
  std::vector<std::byte> bytes = bytes_of(*copied), own = bytes_of(books.store);
  const std::vector<std::byte> secret(16, std::byte{0xa5});
  CHECK(std::ranges::search(own, secret).size() == 16);
  CHECK(std::ranges::search(bytes, secret).empty());
  CHECK(read(bytes).text == text_of(books.store));
  CHECK(read(bytes).problems.empty());
  CHECK_FALSE(Mapping::map(copied->get(), 0, 4096, Access::read_write));
  CHECK_FALSE(sys::truncate(copied->get(), books.store.copy_bytes() + 4096));
}

TEST_CASE("without memory a commit changes nothing, and there is room for all of it when the kernel gives some again") {
  Books books(1000);
  const std::string before = text_of(books.store);
  constexpr std::size_t kMany = 200;  // the last page of a table has places for fewer
  std::array<std::uint32_t, kMany + 3> places;
  places.fill(kNowhere);
  const auto change = [&](std::size_t count) {
    books.store.begin();
    for (std::uint64_t i = 0; i < count; ++i) {
      RegionRecord one = region(20 + i);
      one.memory = static_cast<std::int32_t>(1000 + i);
      books.store.put(places[i], one);
    }
    books.store.put(books.maker, session(1));
    books.store.totals.last_region = 300;
    return books.store.commit();
  };
  const auto problems = [&] {
    auto bytes = bytes_of(books.store);
    const Found found = read(bytes);
    CHECK(found.text == before);
    return found.problems;
  };
  books.store.erase<NameRecord>(books.called);
  CHECK(problems().empty());
  {
    harness::Injected broken(fault::Call::madvise, ENOMEM, 1, -1);
    CHECK_FALSE(change(kMany));
    CHECK(books.store.behind());
    CHECK_FALSE(books.store.ready());
    // A reader hears that something has left the broker which is not there.
    REQUIRE(problems().size() == 1);
    CHECK(problems().front().starts_with("there was no memory for what the broker has done since transaction 1: "));
    CHECK_FALSE(change(kMany));
    CHECK_FALSE(books.store.ready());
    CHECK(problems().size() == 1);
  }
  CHECK(books.store.ready());
  CHECK(books.store.behind());  // until the commit
  // What failed and the next request's records need nothing more from the kernel.
  harness::Injected broken(fault::Call::madvise, ENOMEM, 1, -1);
  CHECK(change(kMany + 3));
  CHECK_FALSE(books.store.behind());
  const std::string after = text_of(books.store);
  for (std::size_t i = 0; i < kMany + 3; ++i) CHECK(after.find("region id=" + std::to_string(20 + i)) != after.npos);
  CHECK(after.find("name id=7") == after.npos);
}

TEST_CASE("a number that was given out is in the books after a commit that changes nothing else") {
  Books books;
  books.store.begin();
  books.store.totals.last_reference = 10;
  CHECK(books.store.commit());
  CHECK(text_of(books.store).find(" last_reference=10 ") != std::string::npos);
}

TEST_CASE("a commit asks the kernel for what it lacks, even if no request asked for room") {
  Books books;
  std::array<std::uint32_t, 6> places;
  places.fill(kNowhere);
  books.store.begin();
  for (std::uint64_t i = 0; i < places.size(); ++i) books.store.put(places[i], region(20 + i));
  books.store.totals.last_region = 30;
  CHECK(books.store.commit());
  CHECK(text_of(books.store).find("region id=25") != std::string::npos);
}

TEST_CASE("in a full table a record gets the place of one that the same transaction frees") {
  Books books;
  books.fill();
  const std::string before = text_of(books.store);
  std::uint32_t heir = kNowhere, other = kNowhere;
  const std::uint32_t place = books.first;
  books.store.erase<RegionRecord>(books.first);
  books.erase_of_region();
  SUBCASE("and the commit goes through") {
    books.store.begin();
    books.store.put(heir, region(40));
    CHECK(books.store.commit());
    CHECK(heir == place);
    const std::string after = text_of(books.store);
    CHECK(after.find("region id=7 ") == after.npos);
    CHECK(after.find("region id=40 ") != after.npos);
    CHECK(books.store.count(RegionRecord::kNumber) == 7);
  }
  SUBCASE("and what had it stays in the books until a commit, also if the heir ends before one") {
    books.store.begin();
    books.store.put(heir, region(40));
    books.store.put(other, region(41));
    CHECK(other == kNowhere);
    CHECK_FALSE(books.store.commit());
    CHECK(text_of(books.store) == before);
    books.store.erase<RegionRecord>(heir);
    books.store.begin();
    books.store.put(other, region(41));
    CHECK(books.store.commit());
    const std::string after = text_of(books.store);
    for (const char* gone : {"region id=7 ", "region id=40 "}) CHECK(after.find(gone) == after.npos);
    CHECK(after.find("region id=41 ") != after.npos);
    CHECK(books.store.count(RegionRecord::kNumber) == 7);
  }
}

TEST_CASE("where a full table has no place for a record, the books go on once there are fewer") {
  Books books;
  books.fill();
  const std::string before = text_of(books.store);
  std::uint32_t extra = kNowhere;
  books.store.begin();
  books.store.put(extra, region(50));
  CHECK_FALSE(books.store.commit());
  CHECK_FALSE(books.store.ready());
  CHECK(text_of(books.store) == before);
  SUBCASE("because what has no record has ended") {
    books.store.begin();
    CHECK(books.store.commit());
    CHECK_FALSE(books.store.behind());
    CHECK_FALSE(books.store.ready());  // a request may add 3
  }
  SUBCASE("because others have") {
    for (std::uint32_t place = 1; place <= 4; ++place) {
      std::uint32_t old = place;
      books.store.erase<RegionRecord>(old);
    }
    books.store.begin();
    books.store.put(extra, region(50));
    CHECK(books.store.commit());
    CHECK(books.store.ready());
    CHECK(text_of(books.store).find("region id=50 ") != std::string::npos);
  }
}

TEST_CASE("tables and journal move as they grow, and keep what they have") {
  auto made = Store::make({.epoch = 0xe10c, .no_exec = false});
  REQUIRE(made);
  Store& store = *made;
  constexpr std::uint64_t kMany = 20'000;
  std::vector<std::uint32_t> places(kMany + 1, kNowhere);
  const auto put = [&](std::uint64_t id) { store.put(places[id], region(id, 4096 * id)); };
  const auto commit = [&](std::uint64_t last) {
    store.totals.last_region = last;
    return store.commit();
  };
  std::uint64_t last = 0;
  std::uint32_t owner = kNowhere;
  // So many at once that the journal grows under way.
  store.begin();
  store.put(owner, group(1));
  store.totals.last_group = 1;
  while (last < kMany / 2) put(++last);
  REQUIRE(commit(last));
  {
    harness::Injected broken(fault::Call::mremap, ENOMEM, 1, -1);
    while (store.ready() && last < kMany) {
      store.begin();
      put(++last);
      REQUIRE(commit(last));
    }
    REQUIRE(last < kMany);
    CHECK(store.count(RegionRecord::kNumber) == last);
  }
  CHECK(store.ready());
  store.begin();
  while (last < kMany) put(++last);
  REQUIRE(commit(last));
  CHECK(store.count(RegionRecord::kNumber) == kMany);
  for (std::uint64_t id = 1; id <= kMany; ++id) REQUIRE(store.at<RegionRecord>(places[id]).length == 4096 * id);
  auto copied = store.copy();
  REQUIRE(copied);
  auto bytes = bytes_of(*copied);
  CHECK(read(bytes).problems.empty());
}
