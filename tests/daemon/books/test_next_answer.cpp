// SPDX-License-Identifier: Apache-2.0
// A session that goes on with the next broker. The answer that the last one has committed and not sent comes from
// there. The first broker lives in this process, and the next one in a forked process, which has a copy of the
// descriptors with the same numbers.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/sys_socket.hpp"
#include "daemon/books/last_books.hpp"
#include "tests/daemon/books/books_fixture.hpp"
#include "tests/daemon/books/records_fixture.hpp"
#include "tests/harness/child.hpp"

using namespace shmb;
using namespace shmb::daemon;
using namespace shmb::daemon::test;

namespace {

constexpr std::uint64_t kMany = 20;  // more than one turn serves

using Bytes = std::vector<std::byte>;

// One broker with one session, on a socket whose other end is this process.
struct Life {
  std::vector<std::string> log;
  FakeLink link;
  std::unique_ptr<BrokerEvents> broker;
  Session* session = nullptr;

  explicit Life(int socket, const books::LastBooks* last = nullptr) : link(peer()) {
    link.socket = socket;
    BrokerFacts facts;
    facts.resumable = true;
    facts.compare_books = 1;
    facts.version = "shmbrokerd test";
    facts.descriptors_limit = 19'000;
    facts.log = [this](int, std::string_view line) { log.emplace_back(line); };
    auto made = make_broker(private_config(), std::move(facts), last);
    REQUIRE(made);
    broker = std::move(*made);
    if (!last) {
      session = broker->connected(link);
      return;
    }
    for (const auto& open : broker->open_sessions()) {
      session = open.session;
      broker->connected_again(*session, link);
    }
    broker->begun();
  }
  static Peer peer() {
    Peer out;
    out.uid = out.gid = ::getuid();
    out.pid = static_cast<std::uint32_t>(::getpid());
    return out;
  }
  // One turn. Whether the session has another one.
  bool turn(const Bytes& packet) {
    link.yields = false;
    broker->packet(*session, *wire::open_packet(packet, 0, wire::Direction::request));
    link.collect();
    return link.yields;
  }
  // The answer, or none.
  Packet* serve(const Bytes& packet) {
    const std::size_t before = link.replies.size();
    while (turn(packet)) {
    }
    while (link.held) {
      (void)sys::poll_readable(broker->wake_fd(), kMinute);
      link.again = [&] { link.held = false; };
      broker->woken();
      if (!link.held)
        while (turn(packet)) {
        }
    }
    return link.replies.size() == before + 1 ? &link.replies.back() : nullptr;
  }
  std::uint32_t regions(std::uint64_t number);
  bool has_own_bug() const {
    return std::ranges::any_of(log, [](const std::string& line) { return line.find("own bug") != line.npos; });
  }
};

template <class T>
Bytes plain_packet(std::uint16_t op, std::uint64_t number, const T& fixed, std::uint16_t flags = 0,
                   std::string_view texts = {}) {
  wire::Writer out(request_room());
  out.begin(op, number, Status::ok, fixed, flags);
  out.text(texts);
  const wire::Bytes packet = out.finish(0);
  return {packet.begin(), packet.end()};
}
template <class T>
Bytes batch_packet(std::uint16_t op, std::uint64_t number, const std::vector<T>& elements, std::uint16_t flags = 0) {
  wire::Writer out(request_room());
  out.begin_batch<T>(op, number, elements.size(), flags);
  for (std::size_t i = 0; i < elements.size(); ++i) out.element(i, elements[i]);
  const wire::Bytes packet = out.finish(0);
  return {packet.begin(), packet.end()};
}
Bytes hello() {
  shmbw_hello wish{};
  wish.version_min = wish.version_max = SHMBW_PROTOCOL;
  wish.features = SHMBW_FEATURE_RESUME;
  return plain_packet(SHMBW_OP_HELLO, 1, wish);
}
// The first packet after the event.
Bytes resumed(Bytes packet) {
  shmbw_header header;
  std::memcpy(&header, packet.data(), sizeof header);
  header.flags |= SHMBW_HEADER_RESUMED;
  std::memcpy(packet.data(), &header, sizeof header);
  return packet;
}

std::uint32_t Life::regions(std::uint64_t number) {
  Packet* const reply = serve(plain_packet(SHMBW_OP_STATUS, number, shmbw_status{}));
  return reply ? reply->fixed<shmbw_status_reply>().regions : UINT32_MAX;
}

std::vector<ino_t> files_of(const Packet& packet) {
  std::vector<ino_t> out;
  for (const Fd& fd : packet.fds) {
    struct stat facts{};
    (void)::fstat(fd.get(), &facts);
    out.push_back(facts.st_ino);
  }
  return out;
}

// "" or what the next broker does wrong. It is the child's answer.
void with_next_broker(int socket, const std::function<std::string(Life&)>& then) {
  const int number = own_books();
  REQUIRE(number >= 0);
  const auto child = [&]() -> std::string {
    auto last = books::LastBooks::open(number);
    if (!last) return last.error().sentence;
    Life& next = *new Life(socket, &*last);  // it never ends: that would close what the parent has
    if (!next.session) return "the session did not resume";
    std::string wrong = then(next);
    if (next.has_own_bug()) wrong += " own bug: " + next.log.back();
    return wrong;
  };
  auto process = harness::Child::run([&] {
    const std::string wrong = child();
    if (!wrong.empty()) std::fprintf(stderr, "%s\n", wrong.c_str());
    return wrong.empty() ? 0 : 1;
  });
  CHECK(process.wait() == 0);
}

std::uint64_t number_told(Life& next) {
  for (const Packet& event : next.link.events)
    if (event.op() == (SHMBW_EVENT | SHMBW_EVENT_RESUME)) return event.fixed<shmbw_resume_event>().number;
  return UINT64_MAX;
}

struct Pair {
  std::array<Fd, 2> ends = std::move(sys::seqpacket_pair().value());
  int socket() const { return ends[0].get(); }
};

}  // namespace

TEST_CASE(
    "the next broker sends the answer that the last one had committed, with its descriptors, and serves nothing") {
  struct Request {
    const char* what;
    std::function<Bytes(Life&)> packet;
  };
  const auto region = [](Life& life) {
    Packet* const made = life.serve(batch_packet<shmbw_create>(SHMBW_OP_CREATE, 2, {{.length = 4096}}));
    return wire::BatchView::open(made->view())->element<shmbw_create_reply>(0)->region;
  };
  const Request requests[] = {
      {"a batch of several turns",
       [&](Life& life) {
         region(life);
         return batch_packet(SHMBW_OP_CREATE, 3, std::vector<shmbw_create>(kMany, {.length = 8192}));
       }},
      {"an attach for reading and one without a descriptor",
       [&](Life& life) {
         const auto ref = region(life);
         shmbw_attach read{}, without{};
         read.by = without.by = SHMBW_ATTACH_BY_ID;
         read.region = without.region = ref;
         read.rights = without.rights = kWrite;
         without.flags = SHMBW_ATTACH_NO_FD;
         return batch_packet<shmbw_attach>(SHMBW_OP_ATTACH, 3, {without, read});
       }},
      {"a publication", [&](Life& life) { return plain_packet(SHMBW_OP_PUBLISH, 3, shmbw_publish{region(life)}); }},
      {"a ticket",
       [&](Life& life) {
         shmbw_ticket_create wish{};
         wish.region = region(life);
         wish.rights = kRead;
         return plain_packet(SHMBW_OP_TICKET_CREATE, 3, wish);
       }},
      {"a group",
       [&](Life& life) {
         region(life);
         shmbw_group_create wish{};
         wish.name_len = 3;
         return plain_packet(SHMBW_OP_GROUP_CREATE, 3, wish, 0, "job");
       }},
      {"a refusal",
       [&](Life& life) {
         region(life);
         return plain_packet(SHMBW_OP_GROUP_LEAVE, 3, shmbw_group_leave{4711});
       }},
  };
  for (const Request& request : requests) {
    CAPTURE(request.what);
    const Pair pair;
    Life first(pair.socket());
    REQUIRE(first.serve(hello()) != nullptr);
    const Bytes packet = request.packet(first);
    Packet* const told = first.serve(packet);
    REQUIRE(told != nullptr);
    const std::string before = text_behind(own_books());
    with_next_broker(pair.socket(), [&](Life& next) -> std::string {
      if (number_told(next) != 3) return "told " + std::to_string(number_told(next));
      const Packet* const again = next.serve(resumed(packet));
      if (!again) return "no answer: " + next.link.dropped;
      if (again->bytes != told->bytes) return "other bytes";
      if (files_of(*again) != files_of(*told)) return "other descriptors";
      const std::size_t tickets = has(before, "\nticket ") ? 1 : 0;
      Packet* const status = next.serve(plain_packet(SHMBW_OP_STATUS, 4, shmbw_status{}));
      if (!status) return "the next packet was not served";
      return status->fixed<shmbw_status_reply>().tickets == tickets ? "" : "it was served twice";
    });
    CHECK_FALSE(first.has_own_bug());
  }
}

TEST_CASE("a batch that was served in part goes on with the next broker where it was, and no element is served twice") {
  const Pair pair;
  Life first(pair.socket());
  REQUIRE(first.serve(hello()) != nullptr);
  const Bytes create = batch_packet(SHMBW_OP_CREATE, 2, std::vector<shmbw_create>(kMany, {.length = 4096}));
  SUBCASE("creates, with their descriptors") {
    REQUIRE(first.turn(create));
    with_next_broker(pair.socket(), [&](Life& next) -> std::string {
      if (number_told(next) != 1) return "told " + std::to_string(number_told(next));
      const Packet* const answer = next.serve(resumed(create));
      if (!answer || answer->fds.size() != kMany) return "no answer, or too few descriptors " + next.link.dropped;
      const auto elements = wire::BatchView::open(answer->view());
      for (std::size_t i = 0; i < kMany; ++i) {
        const auto element = elements->element<shmbw_create_reply>(i);
        if (element->outcome.status != 0 || element->outcome.fd_index != i || element->region.id == 0)
          return "element " + std::to_string(i);
      }
      return next.regions(3) == kMany ? "" : "other regions";
    });
  }
  SUBCASE("one-way releases, while the answer before them is still needed") {
    Packet* const created = first.serve(create);
    REQUIRE(created != nullptr);
    std::vector<shmbw_attach> attaches;
    std::vector<shmbw_release> releases;
    const auto elements = wire::BatchView::open(created->view());
    for (std::size_t i = 0; i < kMany; ++i) {
      shmbw_attach wish{};
      wish.by = SHMBW_ATTACH_BY_ID;
      wish.rights = kWrite;
      wish.flags = SHMBW_ATTACH_NO_FD;
      wish.region = elements->element<shmbw_create_reply>(i)->region;
      attaches.push_back(wish);
      releases.push_back({wish.region, 1, 0});
    }
    const Bytes attach = batch_packet(SHMBW_OP_ATTACH, 3, attaches);
    Packet* const attached = first.serve(attach);
    REQUIRE(attached != nullptr);
    const Bytes release = batch_packet(SHMBW_OP_RELEASE, 4, releases, SHMBW_HEADER_NO_REPLY);
    REQUIRE(first.turn(release));
    with_next_broker(pair.socket(), [&](Life& next) -> std::string {
      if (number_told(next) != 3) return "told " + std::to_string(number_told(next));
      const Packet* const again = next.serve(resumed(attach));
      if (!again || again->bytes != attached->bytes) return "another answer";
      if (next.serve(release)) return "an answer to a one-way request";
      if (next.regions(5) != kMany) return "a reference was given back twice";
      if (next.serve(batch_packet(SHMBW_OP_RELEASE, 6, releases, SHMBW_HEADER_NO_REPLY))) return "an answer";
      for (std::uint64_t number = 7; next.regions(number) != 0; ++number) {
        if (number == 1000) return "a reference was not given back";
        (void)sys::poll_readable(next.broker->wake_fd(), kSecond);
        next.broker->woken();
      }
      return "";
    });
  }
  CHECK_FALSE(first.has_own_bug());
}

TEST_CASE("a session gets a gap from the next broker if what it watched is lost, and none where nothing was") {
  const Pair pair;
  Life first(pair.socket());
  REQUIRE(first.serve(hello()) != nullptr);
  Packet* const created = first.serve(batch_packet<shmbw_create>(SHMBW_OP_CREATE, 2, {{.length = 4096}}));
  REQUIRE(created != nullptr);
  const auto region = wire::BatchView::open(created->view())->element<shmbw_create_reply>(0)->region;
  shmbw_ticket_create wish{};
  wish.region = region;
  wish.rights = kRead;
  Packet* const made = first.serve(plain_packet(SHMBW_OP_TICKET_CREATE, 3, wish));
  REQUIRE(made != nullptr);
  shmbw_watch watch{};
  watch.kind = SHMBW_WATCH_KIND_REGION;
  watch.events = SHMBW_WATCH_EVENT_GONE;
  std::memcpy(watch.ticket, made->fixed<shmbw_ticket_create_reply>().ticket, sizeof watch.ticket);
  Packet* const watched = first.serve(plain_packet(SHMBW_OP_WATCH, 4, watch));
  REQUIRE(watched != nullptr);
  REQUIRE(watched->status() == Status::ok);
  // Without a lease: else the session would end with the region.
  REQUIRE(first.serve(batch_packet<shmbw_release>(SHMBW_OP_RELEASE, 5, {{region, 1, 0}})) != nullptr);
  const auto events = [](Life& next) {
    std::string out;
    for (const Packet& event : next.link.events)
      out += event.op() == (SHMBW_EVENT | SHMBW_EVENT_RESUME) ? "resume "
             : event.op() == (SHMBW_EVENT | SHMBW_EVENT_GAP)  ? "gap "
                                                              : "other ";
    return out;
  };
  with_next_broker(pair.socket(), [&](Life& next) { return events(next) == "resume " ? "" : events(next); });
  int victim = -1;
  {
    const auto books = books::LastBooks::open(own_books());
    REQUIRE(books);
    for (const int number : books->numbers())
      if (number != own_books() && number != pair.socket()) victim = number;
  }
  REQUIRE(victim >= 0);
  const Fd kept = Fd::adopt(::dup(victim)), other = Fd::adopt(::memfd_create("other", 0));
  REQUIRE(::dup2(other.get(), victim) == victim);
  with_next_broker(pair.socket(), [&](Life& next) { return events(next) == "resume gap " ? "" : events(next); });
  REQUIRE(::dup2(kept.get(), victim) == victim);
}
