// SPDX-License-Identifier: Apache-2.0
// How the verbs that look at the whole host show objects: one table of fields for columns, order and filter, a JSON
// form, and the options that those verbs share (docs/tool.md).
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
inline constexpr std::int64_t kStaleAfter = 3600 * kNsPerSecond;  // of a known leftover, unless told otherwise

struct ListingOptions {
  Common common;  // json and exact alone: no broker is asked
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
// For errors of the options -o, -S and -f, which have lines: the filter, and a mark below the place. Gives the exit
// code.
int fail_in_lines(const Error& error);
// Those rows for people. Empty where there are none.
Result<std::string> sheet_table(const ListingOptions& options, const host::Sheet& sheet,
                                const std::vector<std::size_t>& rows);

// Looks at the pages of `chosen` as far as the options ask for it: -o, -S or -f names the field "resident" or "cgroup".
void look_at_pages(host::Inventory& inventory, const std::vector<std::size_t>& chosen, const ListingOptions& options);

// What --why, gc and -q call an object, unlike all others: "/dev/shm/x", "sysv:5", "sysv:5@4026532201" in another IPC
// namespace, "memfd:INODE".
std::string object_id(const host::Object& object);
// Those that a word of the command line means: the one with this id, as it is or as -q prints it; else those with this
// name; else those whose id or name matches it as a glob. A name may hold * itself, so the first of the three wins.
std::vector<std::size_t> named(const host::Inventory& inventory, const std::string& word);
bool is_glob(const std::string& word);

// A text of the kernel under `key`. JSON has no bytes: where they are no UTF-8, U+FFFD stands for those that are not,
// and KEY_hex has them all, exactly.
void put_text(Json& json, const std::string& key, const std::string& text);
// The columns "resident" and "cgroup" are in it where look_at_pages() was asked for them.
Json object_json(const host::Inventory& inventory, const host::Object& object);
// The schema's id, the time, and what could not be seen.
Json host_document(const std::string& verb, const host::Inventory& inventory);
// "Not seen: ..." for people; empty when all was seen.
std::string blind_text(const host::Inventory& inventory);

// Runs `once` and, where -w was given, again and again. Gives the last exit code.
int repeat(const ListingOptions& options, const std::function<int()>& once);
// Scans and judges. SIGIO is ignored from then on: leases are asked for.
Result<host::Inventory> look_at_host(std::int64_t stale_after_ns);

}  // namespace shmb::tools
