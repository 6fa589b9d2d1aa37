// SPDX-License-Identifier: Apache-2.0
// One client connection. The kernel identifies the client. Its end is a readable pidfd or the end of the file (law 2).
// If the pidfd is readable while the socket is open, a forked child holds the socket. Then the session is an heir and
// its leases stay. Requests on that socket are answered as this session's, because the child has its descriptors and
// mappings. The child gets its own session by HELLO with the fork secret on a new connection, and INHERIT.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>

#include "base/sys_process.hpp"
#include "daemon/books/booked.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/list.hpp"
#include "daemon/kit/numbers.hpp"
#include "daemon/kit/secret.hpp"
#include "daemon/ledger/gpu_memory.hpp"
#include "daemon/ledger/lease.hpp"
#include "daemon/ledger/listing.hpp"
#include "daemon/ledger/sealer.hpp"
#include "daemon/ledger/watch.hpp"
#include "daemon/transport/link.hpp"

namespace shmb::daemon {

struct Accounts;
struct Books;
struct Group;
struct Host;
struct Worker;
struct BatchUnderWay;

// silent: accepted, and has not been admitted by a HELLO. greeted: its requests are served. refused: it speaks another
// version of the protocol, and its next request drops it. ended: it has given back all that does not wait for the end
// of its process, and stays until the transport forgets it.
enum class Phase : std::uint8_t { silent, refused, greeted, ended };

// The bytes of an answer, for the next broker. daemon/serve/stored_answer.hpp says when which is stored.
struct StoredAnswer : books::Booked<StoredAnswer> {
  explicit StoredAnswer(std::uint64_t session_id) : session(session_id) {}
  std::uint64_t session;
  std::uint64_t number = 0;  // of the packet; 0: nothing is stored
  std::uint32_t next = 0;    // element of the batch to go on with; 0: it is whole
  std::vector<std::byte> bytes;
  std::vector<std::uint32_t> places;  // of the records of its parts
};

// The numbers of its packets. They change with each request, so they have a small record of their own.
struct SessionNumbers : Numbers, books::Booked<SessionNumbers> {
  explicit SessionNumbers(std::uint64_t session_id) : session(session_id), answer(session_id), begun(session_id) {}
  std::uint64_t session;
  StoredAnswer answer;  // the last one
  StoredAnswer begun;   // of the request in service, a batch of which some elements were served
};

struct Ticket;
struct OfMaker;
struct OfPayer;
struct OfMembers;
struct OfSponsor;
struct OfSupervisors;
// The registry (Sessions::all) owns it, from the accept until Broker::forget(). Other objects point to it: leases,
// watches, tickets, groups, pools, its worker. Each of these stands in a list or map of the session, so its end
// (daemon/serve/session_end.hpp) finds all of them without a search.
class Session : public Hook<Session, OfMembers>, public Hook<Session, OfSupervisors>, public books::Booked<Session> {
 public:
  Session(Host& host, std::uint64_t id, Link& link, Account& uid_account);
  ~Session();
  bool greeted() const { return phase == Phase::greeted; }
  void lose_link() {
    link = nullptr;
    socket = -1;
  }
  std::uint32_t wire_state() const;
  void apply_limits(const Host& host);  // those of the configuration
  // Whether the process' end will give back more after the session's end: places in pools, or leases of GPU memory.
  bool awaits_end() const { return !pools.empty() || (phase == Phase::ended && !leases.empty()); }

  Books& books;
  std::uint64_t id;
  std::uint64_t line;  // id of the first session in this chain of take-overs; what any of them made belongs to it
  Link* link;          // nullptr: disconnected or ended, or not taken over yet
  std::uint32_t uid, pid;
  bool admin, has_pidfd;
  // Their numbers in the transport's hands. -1: none, or a pidfd of which HELLO has yet to confirm whose it is.
  int socket, pidfd;
  Phase phase = Phase::silent;
  bool process_gone = false;       // pidfd readable: an heir holds the socket
  bool takes_descriptors = false;  // asked for in HELLO (law 8)
  bool lazy = false;               // disconnected by us (law 8)
  std::optional<sys::ExitInfo> exit;
  std::optional<Error> refusal;  // over a limit at accept: sent at HELLO
  bool refusal_told = false;     // sent; the connection stays open only to ask again
  Account account;
  Charge charge;
  Secret fork_secret;
  std::uint64_t fork_source = 0;  // session whose leases INHERIT may copy
  Group* group = nullptr;
  Group* supervises = nullptr;
  std::uint64_t ended_group = 0;  // its group was ended under it
  List<Group, OfSponsor> sponsored;
  std::pmr::map<std::uint64_t, Lease> leases;        // by region id
  std::pmr::map<std::uint64_t, Watch> watches;       // by watch id
  List<Ticket, OfMaker> tickets;                     // tickets that end with it
  List<Ticket, OfPayer> paid_tickets;                // tickets that it made, and that count for it
  std::pmr::map<std::uint64_t, std::uint8_t> pools;  // its index in each pool it has joined, by pool id
  Worker* worker = nullptr;                          // its role in a world, or none
  std::uint64_t failed_world = 0;                    // its last world ended before it was complete...
  std::shared_ptr<const Error> failure;              // ... and why
  std::vector<GpuDevice> gpu_devices;                // the GPUs that it has named
  std::shared_ptr<BatchUnderWay> batch;              // the request in service, served in part
  std::unique_ptr<ListUnderWay> listing;             // a LIST whose last page is still to come
  std::pmr::vector<AwaitedSeals> awaited;            // seals for the request in service
  bool held = false;                                 // the request in service was held back
  std::uint64_t sequence = 0;                        // of the last event
  SessionNumbers numbers;
  std::int64_t connected = 0;
  std::uint64_t start_ticks = 0;  // when its process began, as HELLO says; 0 unknown
  std::string library;
};

// Notes that its record must be written again.
void changed(Session& session);

// The limit that is in the way of one more session that has just connected.
std::optional<Shortage> session_shortage(const Accounts& accounts, std::uint32_t uid, bool admin);

}  // namespace shmb::daemon
