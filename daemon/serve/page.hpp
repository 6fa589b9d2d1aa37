// SPDX-License-Identifier: Apache-2.0
// The filter of a LIST, and one page of its reply, written straight into the one reply buffer. Pages follow keys that
// are never reused, so changes between two pages lose and repeat no row. A table in the order of its keys is entered
// where the last page ended. Totals are counted once for all pages: 100,000 regions are 300 pages.
//
// One turn looks at 512 rows at most, so that a long table delays no other session (law 8). A turn that only counts
// yields, and the request is served again from the row that it had come to. A turn that has rows sends a short page.
// The state between two turns or pages is the session's ListUnderWay. It is used only if the next request is the same
// LIST.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <ranges>
#include <string_view>
#include <tuple>
#include <vector>

#include "daemon/pools/pool.hpp"
#include "daemon/remote/world.hpp"
#include "daemon/serve/answer.hpp"

namespace shmb::daemon {

struct Filter {
  shmbw_list wish;
  std::string_view name, group_text;
  const Group* group = nullptr;  // of the text, if one was given
  bool nothing = false;          // the text names no group that the session may know of

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
  bool takes(const World& world) const {
    return (wish.region.id == 0 || wish.region.id == world.id) && takes(*world.group);
  }
  bool by_group() const { return group || nothing || wish.group != 0; }
  // The one region that the filter can mean: `kNoRegion` if there is none, 0 if there may be many.
  std::uint64_t only_region(Ledger& ledger) const {
    if (wish.region.id != 0 || name.empty()) return wish.region.id;
    const Group* const in = wish.group != 0 ? find_group(ledger.groups, wish.group) : group;
    if (!in) return by_group() ? kNoRegion : 0;
    const Region* const named = in->names.find(name);
    return named ? named->id : kNoRegion;
  }
  static constexpr std::uint64_t kNoRegion = UINT64_MAX;
};

inline bool sees(const Session& session, const Group& group) { return session.admin || may_address(session, group); }
// One page, written straight into the reply buffer.
template <class Record>
class Page {
 public:
  // Rows that one turn looks at, and rows of one page, of a table in the order of its keys: some 50 us each.
  static constexpr std::uint64_t kLooksOfTurn = 512;
  static constexpr std::uint16_t kRowsOfPage = 128;

  explicit Page(const Request& request, const Filter& filter)
      : request_(request), wish_(filter.wish), out_(request.writer()) {
    reply_.element_size = sizeof(Record);
    if (const ListUnderWay* const before = request.session.listing.get();
        before && before->is(wish_, request.packet.rest)) {
      counted_ = !before->counting || before->counted;
      counting_on_ = !counted_;
      looked_at_ = counting_on_ ? before->counted_to : 0;
      reply_.total_bytes = before->total_bytes;
      reply_.total_count = before->total_count;
    }
    out_.begin(request.reply_op(), request.packet.header.tag, Status::ok, reply_);
  }
  // The part of a table, ordered by the page's keys, that must be looked at: all of it while totals are counted.
  // `only`: the one key that can be meant, 0: any.
  template <class Table>
  auto rows(Table& table, std::uint64_t only = 0) const {
    auto from = table.begin(), to = table.end();
    if (only != 0) std::tie(from, to) = table.equal_range(only);
    else if (counted_) from = table.upper_bound(wish_.cursor);
    else if (counting_on_) from = table.upper_bound(looked_at_);
    return std::ranges::subrange(from, to);
  }
  void count(std::uint64_t bytes) {
    if (counted_) return;
    ++reply_.total_count;
    reply_.total_bytes += bytes;
  }
  // Whether the row of this key belongs to this page.
  bool wants(std::uint64_t key) const { return key > wish_.cursor && !full_ && !counting_on_; }
  // Call before each row of a table in the order of its keys. True: no row from this one on is needed, or the turn is
  // over.
  bool done(std::uint64_t key) {
    if (full_ && counted_) return true;
    if (looks_++ == kLooksOfTurn) return stopped_ = true;
    looked_at_ = key;
    return false;
  }
  // Whether a record with so much text fits into this page. If not, the next page begins after `last`.
  bool room(std::size_t text) {
    if (full_) return false;
    full_ = out_.room() < sizeof(Record) + text || reply_.count == (looks_ != 0 ? kRowsOfPage : UINT16_MAX);
    if (full_) reply_.next = last_;
    return !full_;
  }
  void add(std::uint64_t key, const Record& record, std::initializer_list<std::string_view> texts = {}) {
    out_.append(record);
    for (const std::string_view text : texts) out_.text(text);
    ++reply_.count;
    last_ = key;
  }
  void send() {
    auto& listing = request_.session.listing;
    if (!counted_ && (stopped_ || counting_on_)) {
      if (!listing) listing = std::make_unique<ListUnderWay>();
      listing->note_count(wish_, request_.packet.rest, reply_, looked_at_, !stopped_);
      return request_.yield();
    }
    if (stopped_ && reply_.next == 0) reply_.next = looked_at_;  // few of many rows matched, so the page is short
    if (reply_.next != 0) {
      if (!listing) listing = std::make_unique<ListUnderWay>();
      listing->note(wish_, request_.packet.rest, reply_);
    } else if (counted_) {
      listing.reset();
    }
    std::memcpy(request_.ledger.reply.buffer.get() + sizeof(shmbw_header), &reply_, sizeof reply_);
    request_.send(out_);
  }

 private:
  const Request& request_;
  const shmbw_list& wish_;
  wire::Writer out_;
  shmbw_list_reply reply_{};
  std::uint64_t last_ = 0;
  bool full_ = false;
  bool counted_ = false;      // the totals are those of the first page
  bool counting_on_ = false;  // an earlier turn has begun to count
  bool stopped_ = false;      // this turn has looked at as many rows as it may
  std::uint64_t looks_ = 0, looked_at_ = 0;
};

// For rows that are in no table ordered by their serial: picks the rows of this page and sorts only those.
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

// In reports.cpp.
void list_reports(const Request& request, const Filter& filter);
void list_refusals(const Request& request, const Filter& filter);
// For worlds: remote.cpp.
void list_worlds(const Request& request, const Filter& filter);
void list_workers(const Request& request, const Filter& filter);
void list_references(const Request& request, const Filter& filter);

}  // namespace shmb::daemon
