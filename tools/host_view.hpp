// SPDX-License-Identifier: Apache-2.0
// How the verbs for the whole host show objects: one table of fields for columns, order and filter, a JSON form, and
// the common options of those verbs (docs/tool.md).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/host/scan.hpp"
#include "tools/host/sheet.hpp"
#include "tools/report_json.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {

inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;
inline constexpr std::int64_t kStaleAfter = 3600 * kNsPerSecond;  // the default for a known leftover

struct ListingOptions {
  Common common;  // only json and exact: no broker is used
  std::string columns, order, filter;
  bool ids_only = false;
  std::int64_t every = 0;  // ns; 0: once
};
void add_listing(CLI::App& verb, ListingOptions& options, const std::string& fields);

// The fields of objects, without rows.
host::Sheet object_fields();
// A row for each of `chosen` (indices into inventory.objects), in this order.
host::Sheet object_sheet(const host::Inventory& inventory, const std::vector<std::size_t>& chosen);
// The rows that pass the filter, as indices into sheet.rows, ordered. An error in filter or order is a sentence.
Result<std::vector<std::size_t>> arranged(const ListingOptions& options, const host::Sheet& sheet,
                                          const char* default_order);
// For errors of the options -o, -S and -f, which have several lines: the filter, and a mark below the place. Returns
// the exit code.
int fail_in_lines(const Error& error);
// Those rows for people. Empty if there are none.
Result<std::string> sheet_table(const ListingOptions& options, const host::Sheet& sheet,
                                const std::vector<std::size_t>& rows);

// Looks at the pages of `chosen` if the options ask for it: -o, -S or -f names the field "resident" or "cgroup".
void look_at_pages(host::Inventory& inventory, const std::vector<std::size_t>& chosen, const ListingOptions& options);

// The id of an object for --why, gc and -q: "/dev/shm/x", "sysv:5", "sysv:5@4026532201" in another IPC namespace,
// "memfd:INODE".
std::string object_id(const host::Object& object);
// The objects that a word of the command line means. First the one with this id, as it is or as -q prints it. Then
// those with this name. Then those whose id or name matches it as a glob. A name may contain *, so the first of the
// three that matches wins.
std::vector<std::size_t> named(const host::Inventory& inventory, const std::string& word);
bool is_glob(const std::string& word);

// Stores a text of the kernel under `key`. JSON has no bytes: bytes that are not UTF-8 become U+FFFD, and KEY_hex then
// holds all bytes exactly.
void put_text(Json& json, const std::string& key, const std::string& text);
// The columns "resident" and "cgroup" are in it where look_at_pages() was asked for them.
Json object_json(const host::Inventory& inventory, const host::Object& object);
// The schema's id, the time, and what could not be seen.
Json host_document(const std::string& verb, const host::Inventory& inventory);
// "Not seen: ..." for people; empty when all was seen.
std::string blind_text(const host::Inventory& inventory);

// Runs `once`, and with -w repeats it. Returns the last exit code.
int repeat(const ListingOptions& options, const std::function<int()>& once);
// Scans and judges. It sets SIGIO to be ignored, because leases are requested.
Result<host::Inventory> look_at_host(std::int64_t stale_after_ns);

}  // namespace shmb::tools
