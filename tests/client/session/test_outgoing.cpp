// SPDX-License-Identifier: Apache-2.0
// The library's queue and the broker's rule against each other, with a broker that dies at every point: all orders of
// all steps of a few packets are explored. Each packet is served once, and each request is answered.
//
// The parts are the product's own (client/session/outgoing.hpp, daemon/kit/numbers.hpp). Around them are two queues
// of packets, which outlive a broker, and the part of a broker that outlives it: its numbers and its one stored answer.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "client/session/outgoing.hpp"
#include "daemon/kit/numbers.hpp"
#include "proto/codec.hpp"

using namespace shmb;
using client::Outgoing;
using daemon::Numbers;

namespace {

constexpr std::uint64_t kPackets = 3, kDeaths = 2;

std::vector<std::byte> request(bool one_way) {
  std::vector<std::byte> buffer(128);
  wire::Writer writer(buffer);
  writer.begin_batch<shmbw_release>(SHMBW_OP_RELEASE, 0, 1, one_way ? SHMBW_HEADER_NO_REPLY : 0);
  buffer.resize(writer.finish(0).size());
  return buffer;
}
std::uint64_t number_of(std::span<const std::byte> packet) {
  shmbw_header header;
  std::memcpy(&header, packet.data(), sizeof header);
  return header.tag;
}

bool is_resumed(std::span<const std::byte> packet) {
  shmbw_header header;
  std::memcpy(&header, packet.data(), sizeof header);
  return (header.flags & SHMBW_HEADER_RESUMED) != 0;
}

using Rule = Numbers::Due (*)(Numbers&, const Numbers::Packet&);
Numbers::Due rule(Numbers& numbers, const Numbers::Packet& packet) { return numbers.due(packet); }
// Rules that are not enough.
Numbers::Due any_greater(Numbers& numbers, const Numbers::Packet& packet) {
  return packet.number > numbers.served ? Numbers::Due::next : numbers.due(packet);
}
Numbers::Due always_sure(Numbers& numbers, const Numbers::Packet& packet) {
  numbers.unsure = false;
  return numbers.due(packet);
}
Numbers::Due nothing_stored(Numbers& numbers, const Numbers::Packet& packet) {
  const Numbers::Due due = numbers.due(packet);
  return due == Numbers::Due::repeated ? Numbers::Due::over : due;
}

enum class Step { send, serve, serve_and_die, die_before_commit, die_after_commit, die, read, count };

class Play {
 public:
  // Bit n of `one_ways`: packet n + 1 has no answer.
  Play(unsigned one_ways, Rule due) : one_ways_(one_ways), due_(due) {
    outgoing_.keep(true);
    numbers_.on = true;
  }

  bool possible(Step step) const {
    const bool may_serve = !to_broker_.empty() && (!to_broker_.front().has_answer || !answer_unread());
    const bool may_die = deaths_ < kDeaths;
    switch (step) {
      case Step::send:
        return outgoing_.waits() || outgoing_.next_number() <= kPackets;
      case Step::serve:
        return may_serve;
      case Step::serve_and_die:
      case Step::die_before_commit:
      case Step::die_after_commit:
        return may_serve && may_die;
      case Step::die:
        return may_die;
      case Step::read:
        return !to_client_.empty();
      case Step::count:
        break;
    }
    return false;
  }

  void take(Step step) {
    switch (step) {
      case Step::send:
        return send();
      case Step::serve:
        return serve(true, true);
      case Step::serve_and_die:
        serve(true, true);
        return die();
      case Step::die_before_commit:
        serve(false, false);
        return die();
      case Step::die_after_commit:
        serve(true, false);
        return die();
      case Step::die:
        return die();
      case Step::read:
        return read();
      case Step::count:
        return;
    }
  }

  // Two plays with the same key go on alike: the kept packets are those with the last numbers.
  std::string key() const {
    std::string out;
    const auto add = [&](std::uint64_t number) { out += static_cast<char>(number + 1); };
    add(outgoing_.next_number()), add(outgoing_.kept()), add(outgoing_.waiting()), add(outgoing_.one_ways());
    add(numbers_.served), add(numbers_.answered), add(numbers_.unsure), add(stored_), add(deaths_), add(next_resumed());
    for (std::uint64_t n = 0; n < kPackets; ++n) add(served_[n]), add(answered_[n]);
    for (const Numbers::Packet& packet : to_broker_) add(packet.number), add(packet.resumed);
    add(100);
    for (const auto& [resume, number] : to_client_) add(resume), add(number);
    return out;
  }

  std::string wrong() const {
    if (!failure_.empty()) return failure_;
    for (std::uint64_t n = 0; n < kPackets; ++n)
      if (served_[n] > 1) return "packet " + std::to_string(n + 1) + " was served twice";
    if (possible(Step::send) || possible(Step::serve) || possible(Step::read)) return {};
    for (std::uint64_t n = 0; n < kPackets; ++n) {
      if (served_[n] == 0) return "packet " + std::to_string(n + 1) + " was never served";
      if (!is_one_way(n + 1) && answered_[n] == 0) return "packet " + std::to_string(n + 1) + " was never answered";
    }
    return {};
  }

 private:
  bool is_one_way(std::uint64_t number) const { return (one_ways_ >> (number - 1) & 1) != 0; }
  bool answer_unread() const {
    for (const auto& [resume, number] : to_client_)
      if (!resume) return true;
    return false;
  }
  void push(std::span<const std::byte> packet) {
    const std::uint64_t number = number_of(packet);
    to_broker_.push_back({number, !is_one_way(number), is_resumed(packet)});
  }
  void send() {
    if (outgoing_.waits()) {
      push(outgoing_.first().bytes);
      return outgoing_.first_was_sent();
    }
    auto packet = request(is_one_way(outgoing_.next_number()));
    outgoing_.stamp(packet);
    push(packet);
    outgoing_.was_sent(packet, {});
  }
  // Whether the next packet will have the flag.
  bool next_resumed() const {
    if (outgoing_.waits()) return is_resumed(outgoing_.first().bytes);
    auto packet = request(false);
    outgoing_.stamp(packet);
    return is_resumed(packet);
  }
  void serve(bool commits, bool answers) {
    const Numbers::Packet packet = to_broker_.front();
    const std::uint64_t number = packet.number;
    to_broker_.pop_front();
    const Numbers::Due due = due_(numbers_, packet);
    if (due == Numbers::Due::repeated && stored_ == number && answers) to_client_.push_back({false, number});
    if (due != Numbers::Due::next || !commits) return;
    ++served_[number - 1];
    numbers_.serve(number, !is_one_way(number));
    if (is_one_way(number)) return;
    stored_ = number;
    if (answers) to_client_.push_back({false, number});
  }
  void die() {
    ++deaths_;
    numbers_.take_over();
    to_client_.push_back({true, numbers_.served});
  }
  void read() {
    const auto [resume, number] = to_client_.front();
    to_client_.pop_front();
    if (resume) {
      failure_ = outgoing_.resume(number);
      return;
    }
    answered_[number - 1] = 1;
    outgoing_.answered(number);
  }

  unsigned one_ways_;
  Rule due_;
  Outgoing outgoing_;
  std::deque<Numbers::Packet> to_broker_;
  std::deque<std::pair<bool, std::uint64_t>> to_client_;  // RESUME or an answer
  Numbers numbers_;
  std::uint64_t stored_ = 0, deaths_ = 0;
  std::array<std::uint64_t, kPackets> served_{}, answered_{};
  std::string failure_;
};

// Breadth first, by playing the way to each state again. What is wrong in the first wrong state, or nothing.
std::string explore(unsigned one_ways, Rule due, std::size_t& states) {
  std::deque<std::vector<Step>> open{{}};
  std::set<std::string> seen;
  while (!open.empty()) {
    const std::vector<Step> way = std::move(open.front());
    open.pop_front();
    for (int i = 0; i < static_cast<int>(Step::count); ++i) {
      const Step step = static_cast<Step>(i);
      Play play(one_ways, due);
      for (const Step before : way) play.take(before);
      if (!play.possible(step)) continue;
      play.take(step);
      if (!seen.insert(play.key()).second) continue;
      ++states;
      if (std::string wrong = play.wrong(); !wrong.empty()) return wrong;
      open.push_back(way);
      open.back().push_back(step);
    }
  }
  return {};
}

}  // namespace

TEST_CASE("each packet is served once and each request answered, wherever two brokers die, in every order of steps") {
  std::size_t states = 0;
  for (unsigned one_ways = 0; one_ways < 1U << kPackets; ++one_ways) {
    CAPTURE(one_ways);
    CHECK(explore(one_ways, rule, states) == "");
  }
  MESSAGE("explored " << states << " states");
  CHECK(states > 1000);
}

TEST_CASE("the exploration finds what is wrong with rules that are not enough") {
  const auto found = [](Rule due) {
    std::size_t states = 0;
    std::string all;
    for (unsigned one_ways = 0; one_ways < 1U << kPackets; ++one_ways) all += explore(one_ways, due, states) + "\n";
    return all;
  };
  CHECK(found(any_greater).find("was never served") != std::string::npos);
  CHECK(found(always_sure).find("was never answered") != std::string::npos);
  CHECK(found(nothing_stored).find("was never answered") != std::string::npos);
}

TEST_CASE("without the feature no packet is kept once it has been sent") {
  Outgoing outgoing;
  outgoing.add(request(true));
  CHECK(outgoing.waits());
  CHECK(number_of(outgoing.first().bytes) == 1);
  outgoing.first_was_sent();
  outgoing.was_sent(request(false), {});
  CHECK(outgoing.next_number() == 3);
  CHECK(outgoing.kept() == 0);
  CHECK_FALSE(outgoing.waits());
}
