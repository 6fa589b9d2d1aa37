// SPDX-License-Identifier: Apache-2.0
// A broker that dies and is followed by another on the same connection. The test plays all brokers. Each scripted one
// keeps to the rule of the real one (daemon/kit/numbers.hpp), and dies where a case wants it.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/sys_memory.hpp"
#include "base/sys_socket.hpp"
#include "daemon/kit/numbers.hpp"
#include "tests/client/session/channel_peer.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/proc.hpp"

using namespace channel_tests;
using daemon::Numbers;

namespace {

constexpr std::int64_t kShort = 20'000'000;

std::vector<std::byte> hello_request(std::uint64_t features) {
  std::vector<std::byte> buffer(256);
  wire::Writer writer(buffer);
  shmbw_hello hello{};
  hello.version_min = hello.version_max = SHMBW_PROTOCOL;
  hello.features = features;
  writer.begin(SHMBW_OP_HELLO, 0, Status::ok, hello);
  buffer.resize(writer.finish(0).size());
  return buffer;
}

// A request that is told from all others by `mark`: answered, or one-way.
std::vector<std::byte> marked(std::uint64_t mark, bool one_way, std::size_t descriptors = 0) {
  std::vector<std::byte> buffer(256);
  wire::Writer writer(buffer);
  writer.begin_batch<shmbw_release>(SHMBW_OP_RELEASE, 0, 1, one_way ? SHMBW_HEADER_NO_REPLY : 0);
  writer.element(0, shmbw_release{{mark, 1, 0}, 1, 0});
  buffer.resize(writer.finish(descriptors).size());
  return buffer;
}
std::uint64_t mark_of(std::span<const std::byte> packet) {
  shmbw_release element;
  std::memcpy(&element, packet.data() + sizeof(shmbw_header) + sizeof(shmbw_batch), sizeof element);
  return element.region.id;
}

struct Taken {
  std::vector<std::byte> bytes;
  shmbw_header header{};
  std::vector<Fd> fds;
  std::uint64_t number() const { return header.tag; }
  bool resumed() const { return (header.flags & SHMBW_HEADER_RESUMED) != 0; }
  bool one_way() const { return (header.flags & SHMBW_HEADER_NO_REPLY) != 0; }
};

struct Brokers : Peer {
  explicit Brokers(std::uint64_t granted = SHMBW_FEATURE_RESUME) { greet(granted); }

  void greet(std::uint64_t granted) {
    std::thread client([&] {
      auto packet = hello_request(SHMBW_FEATURE_RESUME);
      CHECK(channel.call(packet, Deadline::after(0)).has_value());
    });
    const Taken hello = next();
    CHECK(hello.number() == 1);
    answer_hello(hello.number(), granted);
    client.join();
  }
  void answer_hello(std::uint64_t number, std::uint64_t granted) const {
    std::array<std::byte, 512> buffer;
    wire::Writer writer(buffer);
    shmbw_hello_reply reply{};
    reply.features = granted;
    writer.begin(SHMBW_OP_HELLO | SHMBW_REPLY, number, Status::ok, reply);
    give(writer.finish(0));
  }
  Taken next() const {
    Taken taken;
    taken.bytes.resize(SHMBW_MAX_MESSAGE);
    auto got = sys::receive(socket.get(), taken.bytes, taken.fds, true);
    taken.bytes.resize(got ? got->size : 0);
    if (taken.bytes.size() >= sizeof taken.header) std::memcpy(&taken.header, taken.bytes.data(), sizeof taken.header);
    return taken;
  }
  bool has_next() const {
    pollfd one{socket.get(), POLLIN, 0};
    return ::poll(&one, 1, 0) == 1;
  }
  void tell_resume(std::uint64_t served) const {
    std::array<std::byte, 128> buffer;
    wire::Writer writer(buffer);
    writer.begin(SHMBW_EVENT | SHMBW_EVENT_RESUME, 0, Status::ok, shmbw_resume_event{1, 0, served});
    give(writer.finish(0));
  }
  // An answer that says which packet it belongs to, by its content.
  void answer(std::uint64_t number, std::uint64_t mark, std::span<const int> fds = {}) const {
    std::array<std::byte, 256> buffer;
    wire::Writer writer(buffer);
    writer.begin_batch<shmbw_attach_reply>(SHMBW_OP_RELEASE | SHMBW_REPLY, number, 1);
    shmbw_attach_reply reply{};
    reply.region.id = mark;
    writer.element(0, reply);
    give(writer.finish(fds.size()), fds);
  }
};

std::uint64_t mark_of(const Reply& reply) {
  return wire::BatchView::open(reply.view)->element<shmbw_attach_reply>(0)->region.id;
}
Result<Reply> call_marked(Channel& channel, std::uint64_t mark, std::int64_t timeout = 0) {
  auto packet = marked(mark, false);
  return channel.call(packet, Deadline::after(timeout));
}
void post_marked(Channel& channel, std::uint64_t mark) {
  auto packet = marked(mark, true);
  CHECK(channel.post(packet, Deadline::after(kShort)).has_value());
}

}  // namespace

TEST_CASE("packets have numbers in the order in which they are sent, and one-way messages too") {
  Brokers brokers;
  post_marked(brokers.channel, 70);
  CHECK(status_of(call_marked(brokers.channel, 71, kShort)) == Status::deadline);
  post_marked(brokers.channel, 72);
  for (std::uint64_t number = 2; number <= 4; ++number) {
    const Taken taken = brokers.next();
    CHECK(taken.number() == number);
    CHECK(mark_of(taken.bytes) == 68 + number);
  }
}

TEST_CASE("the next broker gets all packets behind the last one that was served, in order, and no other") {
  for (std::uint64_t served = 1; served <= 5; ++served) {
    CAPTURE(served);
    Brokers brokers;
    post_marked(brokers.channel, 70);
    post_marked(brokers.channel, 71);
    std::thread waiting([&] { CHECK(mark_of(must(call_marked(brokers.channel, 72))) == 72); });
    for (int i = 0; i < 3; ++i) brokers.next();
    post_marked(brokers.channel, 73);  // behind the request whose answer is missing
    CHECK(brokers.next().number() == 5);
    brokers.tell_resume(served);
    // The answer of the request with number 4 is missing, also if the dead broker has served it and what came behind.
    for (std::uint64_t number = std::min<std::uint64_t>(served + 1, 4); number <= 5; ++number) {
      const Taken again = brokers.next();
      CHECK(again.number() == number);
      CHECK(mark_of(again.bytes) == 68 + number);
      CHECK(again.resumed() == (number == std::min<std::uint64_t>(served + 1, 4)));
    }
    brokers.answer(4, 72);
    waiting.join();
    CHECK_FALSE(brokers.has_next());
    brokers.channel.pump();
    brokers.tell_resume(5);
    CHECK(brokers.channel.pump());
    CHECK_FALSE(brokers.has_next());
    for (const bool first : {true, false}) {  // nothing was missing: the next packet says so
      post_marked(brokers.channel, 74);
      CHECK(brokers.next().resumed() == first);
    }
  }
}

TEST_CASE("descriptors go again with their packet, also after its caller has given up and closed them") {
  Brokers brokers;
  const int before = harness::open_descriptors();
  struct stat original{};
  {
    auto file = sys::memfd_create("kept", false);
    REQUIRE(file.has_value());
    ::fstat(file->get(), &original);
    const int number = file->get();
    auto packet = marked(70, false, 1);
    CHECK(status_of(brokers.channel.call(packet, Deadline::after(kShort), nullptr, std::span(&number, 1))) ==
          Status::deadline);
  }
  CHECK(brokers.next().fds.size() == 1);
  for (int death = 0; death < 3; ++death) {
    brokers.tell_resume(1);
    brokers.channel.pump();
    const Taken again = brokers.next();
    CHECK(again.number() == 2);
    REQUIRE(again.fds.size() == 1);
    struct stat came{};
    ::fstat(again.fds[0].get(), &came);
    CHECK(came.st_ino == original.st_ino);
    CHECK(came.st_dev == original.st_dev);
  }
  CHECK(harness::open_descriptors() == before + 1);
  brokers.answer(2, 70);
  brokers.channel.pump();
  CHECK(harness::open_descriptors() == before);
}

TEST_CASE("an answer that comes twice reaches its caller once, and the descriptors of the second are closed") {
  Brokers brokers;
  std::thread waiting([&] { CHECK(must(call_marked(brokers.channel, 70)).fds.size() == 1); });
  CHECK(brokers.next().number() == 2);
  const int fd = brokers.socket.get();
  brokers.answer(2, 70, std::span(&fd, 1));
  waiting.join();
  const int before = harness::open_descriptors();
  brokers.answer(2, 70, std::span(&fd, 1));
  brokers.channel.pump();
  CHECK(harness::open_descriptors() == before);
  CHECK_FALSE(brokers.has_next());  // nothing is given back a second time
  CHECK_FALSE(brokers.channel.lost());
}

TEST_CASE("a client that is just saying HELLO says it again to the next broker") {
  Peer peer;
  std::thread client([&] {
    auto packet = hello_request(SHMBW_FEATURE_RESUME);
    CHECK(peer.channel.call(packet, Deadline::after(0)).has_value());
  });
  const auto first = peer.take();
  std::array<std::byte, 512> buffer;
  wire::Writer writer(buffer);
  writer.begin(SHMBW_EVENT | SHMBW_EVENT_RESUME, 0, Status::ok, shmbw_resume_event{0, 0, 0});
  peer.give(writer.finish(0));
  const auto again = peer.take();
  CHECK(again.header.op == SHMBW_OP_HELLO);
  CHECK(again.header.tag == first.header.tag);
  CHECK(again.bytes.size() == first.bytes.size());
  writer.begin(SHMBW_OP_HELLO | SHMBW_REPLY, 1, Status::ok, shmbw_hello_reply{});
  peer.give(writer.finish(0));
  client.join();
}

TEST_CASE("an older broker, which does not know the feature, gets no packet twice") {
  Brokers brokers(0);
  post_marked(brokers.channel, 70);
  CHECK(brokers.next().number() == 2);
  brokers.tell_resume(1);
  CHECK(brokers.channel.pump());
  CHECK_FALSE(brokers.has_next());
}

TEST_CASE("a forked child begins to count anew, and sends nothing of its parent's again") {
  Brokers brokers;
  post_marked(brokers.channel, 70);
  brokers.next();
  const std::vector<Fd> inherited = brokers.channel.forget();
  auto ends = Peer::must_pair();
  brokers.socket = std::move(ends[0]);
  must(brokers.channel.open(std::move(ends[1])));
  brokers.greet(SHMBW_FEATURE_RESUME);
  brokers.tell_resume(1);
  CHECK(brokers.channel.pump());
  CHECK_FALSE(brokers.has_next());
}

TEST_CASE("a broker that resumes with a number that cannot be ends the session with a sentence") {
  for (const std::uint64_t lie : {std::uint64_t{1}, std::uint64_t{4}, UINT64_MAX}) {
    CAPTURE(lie);
    Brokers brokers;
    std::thread waiting([&] { CHECK(call_marked(brokers.channel, 70).has_value()); });
    brokers.answer(brokers.next().number(), 70);
    waiting.join();
    post_marked(brokers.channel, 71);
    brokers.tell_resume(lie);
    CHECK_FALSE(brokers.channel.pump());
    CHECK(brokers.channel.lost_reason().find("cannot resume it: it says that it has served") != std::string::npos);
  }
}

TEST_CASE(
    "a session with a packet that could not be kept goes on, and ends only if another broker comes before the "
    "answer") {
  for (const bool missing : {false, true}) {
    CAPTURE(missing);
    Brokers brokers;
    {
      const harness::Injected full(shmb::fault::Call::dup, EMFILE);
      const int number = 0;
      auto packet = marked(70, false, 1);
      CHECK(status_of(brokers.channel.call(packet, Deadline::after(kShort), nullptr, std::span(&number, 1))) ==
            Status::deadline);
    }
    CHECK(brokers.next().number() == 2);
    post_marked(brokers.channel, 71);
    brokers.next();
    if (!missing) brokers.answer(2, 70);
    brokers.channel.pump();
    brokers.tell_resume(2);
    CHECK(brokers.channel.pump() == !missing);
    if (missing)
      CHECK(brokers.channel.lost_reason().find("packet 2 of this session could not be kept") != std::string::npos);
    else CHECK(brokers.next().number() == 3);
  }
}

TEST_CASE("a message that waits and can never be sent ends the session, because no packet behind it would be served") {
  for (const std::uint64_t granted : {std::uint64_t{SHMBW_FEATURE_RESUME}, std::uint64_t{0}}) {
    CAPTURE(granted);
    Brokers brokers(granted);
    while (!brokers.channel.wants_room()) post_marked(brokers.channel, 70);
    while (brokers.has_next()) brokers.next();
    {
      const harness::Injected refused(shmb::fault::Call::send, EMSGSIZE);
      brokers.channel.flush();
    }
    CHECK(brokers.channel.lost() == (granted != 0));
    if (granted != 0) {
      CHECK(brokers.channel.lost_reason() == "sending to the broker: Message too long (EMSGSIZE)");
      CHECK(status_of(call_marked(brokers.channel, 71)) == Status::session_lost);
    } else {
      post_marked(brokers.channel, 71);
      CHECK(mark_of(brokers.next().bytes) == 71);
    }
  }
}

TEST_CASE("a message that waits and finds the connection closed ends the session like a call that does") {
  Brokers brokers;
  while (!brokers.channel.wants_room()) post_marked(brokers.channel, 70);
  brokers.socket.reset();
  brokers.channel.flush();
  CHECK(brokers.channel.lost());
  CHECK(brokers.channel.hung_up());
  CHECK(brokers.channel.lost_reason() == "the broker closed the connection");
}

TEST_CASE("a thread that only sends asks for an answer after 64 messages, and then keeps few of them") {
  Brokers brokers;
  std::uint64_t asked = 0, number = 1;
  for (int i = 0; i < 1000; ++i) {
    post_marked(brokers.channel, 70);
    while (brokers.has_next()) {
      const Taken taken = brokers.next();
      CHECK(taken.number() == ++number);
      if (taken.header.op != SHMBW_OP_STATUS) continue;
      ++asked;
      brokers.answer_status(taken.number(), 1);
    }
  }
  CHECK(asked >= 1000 / 66);
  CHECK(asked <= 1000 / 60);
  brokers.tell_resume(number);
  CHECK(brokers.channel.pump());
  CHECK_FALSE(brokers.has_next());
}

TEST_CASE("a thread that only sends asks for no second answer before it has read the first") {
  Brokers brokers;
  std::size_t asked = 0;
  std::uint64_t last = 0;
  const auto post = [&](int messages) {
    for (int i = 0; i < messages; ++i) post_marked(brokers.channel, 70);
    while (brokers.has_next()) {
      const Taken taken = brokers.next();
      if (taken.header.op != SHMBW_OP_STATUS) continue;
      ++asked;
      last = taken.number();
    }
  };
  for (int i = 0; i < 10; ++i) post(50);
  CHECK(asked == 1);
  brokers.answer_status(last, 1);
  for (int i = 0; i < 3; ++i) post(50);
  CHECK(asked == 2);
}

namespace {

// Serves by the rule, and dies at the places of `script`. A broker that dies before its commit forgets the packet; one
// that dies after it has stored the answer, which the next one sends when the packet comes again.
class Dying {
 public:
  enum class Death { before_commit, after_commit, after_answer };
  Dying(Brokers& brokers, int every) : brokers_(brokers), every_(every) {
    numbers_.on = true;
    numbers_.serve(1, true);
  }
  // Until the connection ends.
  void serve() {
    for (Taken taken = brokers_.next(); !taken.bytes.empty(); taken = brokers_.next()) {
      const auto due = numbers_.due({taken.number(), !taken.one_way(), taken.resumed()});
      if (due == Numbers::Due::repeated && stored_) brokers_.answer(taken.number(), *stored_);
      if (due != Numbers::Due::next) {
        ++dropped;
        continue;
      }
      ++seen_;
      const bool dies = seen_ % every_ == 0;
      const auto death = static_cast<Death>(seen_ / every_ % 3);
      if (dies && death == Death::before_commit) {
        die();
        continue;
      }
      if (taken.header.op == SHMBW_OP_STATUS) {
        numbers_.serve(taken.number(), true);
        brokers_.answer_status(taken.number(), 1);
        continue;
      }
      const std::uint64_t mark = mark_of(taken.bytes);
      ++served[mark];
      numbers_.serve(taken.number(), !taken.one_way());
      if (!taken.one_way()) stored_ = mark;
      if (dies && death == Death::after_commit) {
        die();
        continue;
      }
      if (!taken.one_way()) brokers_.answer(taken.number(), mark);
      if (dies) die();
    }
  }
  std::map<std::uint64_t, int> served;
  int deaths = 0, dropped = 0;

 private:
  void die() {
    ++deaths;
    numbers_.take_over();
    brokers_.tell_resume(numbers_.served);
  }
  Brokers& brokers_;
  int every_, seen_ = 0;
  Numbers numbers_;
  std::optional<std::uint64_t> stored_;
};

}  // namespace

TEST_CASE(
    "8 threads with requests outstanding and one-way messages queued see no death of a broker, and each packet "
    "is served once") {
  constexpr std::uint64_t kThreads = 8, kRounds = 60;
  for (const int every : {2, 3, 7, 31}) {
    CAPTURE(every);
    Brokers brokers;
    Dying dying(brokers, every);
    std::thread broker([&] { dying.serve(); });
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (std::uint64_t thread = 0; thread < kThreads; ++thread)
      threads.emplace_back([&, thread] {
        for (std::uint64_t round = 0; round < kRounds; ++round) {
          const std::uint64_t mark = 2 * (thread * kRounds + round);
          auto one_way = marked(mark + 1, true);
          if (!brokers.channel.post(one_way, Deadline::after(20'000'000'000))) ++wrong;
          const auto reply = call_marked(brokers.channel, mark, 20'000'000'000);
          if (!reply || mark_of(*reply) != mark) ++wrong;
        }
      });
    for (auto& thread : threads) thread.join();
    CHECK_FALSE(brokers.channel.lost());
    ::shutdown(brokers.socket.get(), SHUT_RD);  // the broker may still answer what the channel asked for itself
    broker.join();
    CHECK(wrong == 0);
    CHECK(dying.deaths > 0);
    CHECK(dying.served.size() == 2 * kThreads * kRounds);
    for (const auto& [mark, times] : dying.served) CHECK(times == 1);
  }
}
