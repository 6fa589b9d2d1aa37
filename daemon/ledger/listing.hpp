// SPDX-License-Identifier: Apache-2.0
// A LIST of many pages in progress. A long table is counted in portions, in the turns of its session (law 8), before
// its first page is made. The totals are kept for the pages that follow, so a session that reads a long table walks it
// once, not once a page. It is a short cut only: a request with another cursor, with other filters, or of a second
// listing gets totals that are counted again.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "proto/shmb_wire.h"

namespace shmb::daemon {

// Owned by its session, one at a time: another LIST takes its place. `counting`: the request is counted in several
// turns.
class ListUnderWay {
 public:
  // Whether the request asks for the page after the last one that was sent.
  bool is(const shmbw_list& wish, std::span<const std::byte> texts) const {
    return (wish.cursor != 0 || counting) && std::memcmp(&wish, &next_, sizeof wish) == 0 && as_text(texts) == texts_;
  }
  void note(const shmbw_list& wish, std::span<const std::byte> texts, const shmbw_list_reply& page) {
    next_ = wish;
    next_.cursor = page.next;
    texts_ = as_text(texts);
    total_bytes = page.total_bytes;
    total_count = page.total_count;
    counting = false;
  }
  // The same request comes again. It continues behind the row of key `last`, or everything is counted.
  void note_count(const shmbw_list& wish, std::span<const std::byte> texts, const shmbw_list_reply& page,
                  std::uint64_t last, bool all) {
    note(wish, texts, page);
    next_.cursor = wish.cursor;
    counting = true;
    counted_to = last;
    counted = all;
  }

  std::uint64_t total_bytes = 0, total_count = 0;
  bool counting = false, counted = false;
  std::uint64_t counted_to = 0;

 private:
  static std::string_view as_text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  shmbw_list next_{};  // has no padding, because it is the wire's
  std::string texts_;
};

}  // namespace shmb::daemon
