// SPDX-License-Identifier: Apache-2.0
// What a LIST asks for, and one page of its reply, written straight into the one reply buffer. Pages go by keys that
// are never reused, so a table that changes between two pages loses and repeats nothing.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

#include "daemon/answer.hpp"
#include "daemon/pool.hpp"
#include "daemon/rendezvous.hpp"

namespace shmb::daemon {

struct Filter {
  shmbw_list wish;
  std::string_view name;
  const Group* group = nullptr;  // of the text, if one was given
  bool nothing = false;          // the text names no group that the asker may know of

  bool takes_owner(std::uint32_t uid) const {
    return (wish.flags & SHMBW_LIST_OWNER_GIVEN) == 0 || wish.owner_uid == uid;
  }
  bool takes(const Group& of) const {
    return !nothing && (!group || group == &of) && (wish.group == 0 || wish.group == of.id) && takes_owner(of.uid);
  }
  bool takes(const Region& region) const {
    if (wish.region.id != 0 && wish.region.id != region.id) return false;
    if (wish.region.generation != 0 && wish.region.generation != region.generation) return false;
    if (!name.empty() && (!region.name || region.name->text != name)) return false;
    return takes(*region.group);
  }
  bool takes(const Pool& pool) const {
    if (wish.region.id != 0 && wish.region.id != pool.id) return false;
    return (name.empty() || pool.name == name) && takes(*pool.group);
  }
  bool takes(const Rendezvous& rendezvous) const {
    return (wish.region.id == 0 || wish.region.id == rendezvous.id) && takes(*rendezvous.group);
  }
  bool by_group() const { return group || nothing || wish.group != 0; }
};

inline bool sees(const Session& session, const Group& group) { return session.admin || may_address(session, group); }
// One page, written straight into the reply.
template <class Record>
class Page {
 public:
  explicit Page(const Request& request) : request_(request), out_(request.writer()) {
    reply_.element_size = sizeof(Record);
    out_.begin(request.reply_op(), request.packet.header.tag, Status::ok, reply_);
  }
  void count(std::uint64_t bytes) {
    ++reply_.total_count;
    reply_.total_bytes += bytes;
  }
  // Whether a record with so much text goes into this page; if not, the next one begins after `last`.
  bool room(std::size_t text) {
    if (full_) return false;
    full_ = out_.room() < sizeof(Record) + text || reply_.count == UINT16_MAX;
    if (full_) reply_.next = last_;
    return !full_;
  }
  bool full() const { return full_; }
  void add(std::uint64_t key, const Record& record, std::string_view first = {}, std::string_view second = {}) {
    out_.append(record);
    out_.text(first);
    out_.text(second);
    ++reply_.count;
    last_ = key;
  }
  void send() {
    std::memcpy(request_.world.reply_buffer.get() + sizeof(shmbw_header), &reply_, sizeof reply_);
    request_.send(out_);
  }

 private:
  const Request& request_;
  wire::Writer out_;
  shmbw_list_reply reply_{};
  std::uint64_t last_ = 0;
  bool full_ = false;
};

// Rows that stand in no table ordered by their serial: those of this page are picked out and sorted, no others.
template <class Record, class Row, class Key>
void sort_page(std::vector<const Row*>& rows, Key key) {
  const std::size_t most = SHMBW_MAX_MESSAGE / sizeof(Record) + 1;
  auto middle = rows.begin() + static_cast<std::ptrdiff_t>(std::min(most, rows.size()));
  std::ranges::partial_sort(rows, middle, std::less<>(), key);
}
template <class Record, class Row>
void sort_page(std::vector<const Row*>& rows) {
  sort_page<Record>(rows, [](const Row* row) { return row->serial; });
}

// Of worlds: serve_remote.cpp.
void list_worlds(const Request& request, const Filter& filter);
void list_workers(const Request& request, const Filter& filter);
void list_references(const Request& request, const Filter& filter);

}  // namespace shmb::daemon
