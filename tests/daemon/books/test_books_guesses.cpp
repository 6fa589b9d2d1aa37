// SPDX-License-Identifier: Apache-2.0
// A program that guesses ids and tickets learns nothing: an object of another user and an object that does not exist
// get the same answer, after the same time. Times are printed and not asserted. They are compared as a guesser would:
// the medians, and how often a guess of something that exists took longer than a guess of nothing (0.5: a coin tells as
// much).
//
// BOOKS_GUESSES in the environment is the number of guesses of each kind; docs/reliability.md has the long form.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/sys_process.hpp"
#include "proto/names.hpp"
#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;

namespace {

std::size_t guesses() {
  const char* given = std::getenv("BOOKS_GUESSES");
  return given != nullptr ? std::strtoul(given, nullptr, 10) : 20'000;
}

// The answer, without the number that the guesser has sent itself.
std::string answer_of(const Attached& attached, std::uint64_t asked) {
  std::string sentence = attached.error.sentence;
  for (const std::string& number : {names::id_text(asked), std::to_string(asked)})
    if (const std::size_t at = sentence.find(number); at != sentence.npos) sentence.replace(at, number.size(), "N");
  const Shortage& told = attached.error.shortage;
  return std::to_string(static_cast<int>(attached.status)) + " " + std::to_string(told.slot) + " " +
         std::to_string(told.used) + " " + sentence;
}

struct Times {
  std::vector<std::int64_t> there, nowhere;

  std::int64_t median(std::vector<std::int64_t>& times) const {
    std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
    return times[times.size() / 2];
  }
  // Of all pairs of one and the other, the part in which `there` took longer; half of the equal ones.
  double longer() {
    std::ranges::sort(there);
    std::ranges::sort(nowhere);
    double pairs = 0;
    for (const std::int64_t one : there) {
      const auto [from, to] = std::ranges::equal_range(nowhere, one);
      pairs += static_cast<double>(from - nowhere.begin()) + static_cast<double>(to - from) / 2;
    }
    return pairs / (static_cast<double>(there.size()) * static_cast<double>(nowhere.size()));
  }
  void report(const std::string& what, const std::string& first, const std::string& second) {
    const std::int64_t one = median(there), other = median(nowhere);
    MESSAGE(what << ": " << there.size() << " guesses that are " << first << ", median " << one << " ns, and "
                 << nowhere.size() << " that are " << second << ", median " << other
                 << " ns; the former took longer in " << longer() << " of all pairs");
  }
};

// The two kinds come in random order, so that nothing that drifts favours one of them.
template <class Guess>
Times compare(std::mt19937_64& random, Guess&& guess) {
  Times times;
  for (std::size_t left = 2 * guesses(); left > 0; --left) {
    const bool there = (random() & 1) != 0;
    const std::int64_t before = sys::now_monotonic();
    guess(there);
    (there ? times.there : times.nowhere).push_back(sys::now_monotonic() - before);
  }
  return times;
}

}  // namespace

TEST_CASE("guessed ids of another user's regions, and of regions that do not exist, are answered alike") {
  World world(system_config());
  Client owner = world.client(1000), guesser = world.client(2000);
  std::vector<shmbw_region_ref> regions, gone;
  for (int i = 0; i < 2000; ++i) (i % 2 == 0 ? regions : gone).push_back(owner.create().ref());
  for (const shmbw_region_ref& one : gone) REQUIRE(owner.release(one, 0).status == Status::ok);

  std::mt19937_64 random(19);
  std::set<std::string> answers;
  auto times = compare(random, [&](bool there) {
    shmbw_region_ref ref = there ? regions[random() % regions.size()] : gone[random() % gone.size()];
    ref.generation = 0;
    const Attached attached = guesser.attach_id(ref, kRead);
    guesser.link().replies.clear();
    REQUIRE(attached.status == Status::not_found);
    answers.insert(answer_of(attached, ref.id));
  });
  CHECK(answers.size() == 1);
  times.report("ids", "another user's", "nobody's");
}

TEST_CASE("guessed tickets that differ from a true one in one bit, and any other guess, are answered alike") {
  World world(system_config());
  Client owner = world.client(1000), guesser = world.client(2000);
  std::vector<std::array<std::uint8_t, 16>> tickets;
  const shmbw_region_ref region = owner.create().ref();
  for (int i = 0; i < 1000; ++i)
    tickets.push_back(Client::ticket_of(owner.call(SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{region, kRead, 1, 0})));
  owner.link().replies.clear();

  std::mt19937_64 random(19);
  std::set<std::string> answers;
  auto times = compare(random, [&](bool there) {
    std::array<std::uint8_t, 16> ticket = tickets[random() % tickets.size()];
    const std::uint64_t bit = random() % 128, any[2] = {random(), random()};
    if (there) ticket[bit / 8] = static_cast<std::uint8_t>(ticket[bit / 8] ^ 1U << bit % 8);
    else std::memcpy(ticket.data(), any, sizeof any);
    const Attached attached = guesser.attach_ticket(ticket, kRead);
    guesser.link().replies.clear();
    REQUIRE(attached.status == Status::not_found);
    answers.insert(answer_of(attached, 0));
  });
  CHECK(answers.size() == 1);
  times.report("tickets", "a bit off", "anything");
}
