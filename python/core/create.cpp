// SPDX-License-Identifier: Apache-2.0
// Creating regions, one or many, in huge pages or on a NUMA node where that is asked for.
#include <cstdio>
#include <cstring>
#include <vector>

#include "python/core/objects.hpp"

namespace shmb::python {

PyObject* regions_or_error(Session* session, std::vector<shmb_region*>& regions, const std::vector<int>& statuses,
                           int status, const shmb_error& error, bool return_errors, PyObject* names);

namespace {

// How the memory of a region is asked for, beside what the library knows.
struct Memory {
  bool populate = true, must_be_huge = false;

  bool read(PyObject* huge, PyObject* hugetlb, PyObject* numa, shmb_create_options& options) {
    bool wanted = false;
    if (huge != nullptr && huge != Py_None) {
      if (!to_flag(huge, wanted)) return false;
      must_be_huge = wanted;
      if (!wanted) options.flags |= SHMB_CREATE_SMALL_PAGES;
    }
    bool reserved = false;
    if (!to_flag(hugetlb, reserved)) return false;
    if (reserved) options.flags |= SHMB_CREATE_HUGETLB;
    const bool on_node = numa != nullptr && numa != Py_None;
    if (on_node && !to_number(numa, "numa", options.numa_node)) return false;
    if (on_node) options.flags |= SHMB_CREATE_ON_NODE;
    if (!populate) options.flags |= SHMB_CREATE_NO_POPULATE;
    return true;
  }
};

// Without the GIL. False: `error` says why.
bool furnish(shmb_region* region, const Memory& memory, shmb_error& error) {
  if (!memory.must_be_huge || !memory.populate) return true;
  shmb_region_info facts{};
  facts.size = sizeof(facts);
  if (shmb_region_get_info(region, &facts, &error) != SHMB_OK) return false;
  // Recycled memory is entered without a look at its pages. To populate it looks.
  const bool looks = facts.populated < facts.bytes || facts.page_kind == SHMB_PAGES_UNKNOWN;
  if (looks && shmb_region_populate(region, 0, facts.length, &error) != SHMB_OK) return false;
  if (shmb_region_get_info(region, &facts, &error) != SHMB_OK) return false;
  if (facts.page_kind == SHMB_PAGES_HUGE) return true;
  error = {};
  error.status = SHMB_E_UNSUPPORTED;
  std::snprintf(error.sentence, sizeof(error.sentence),
                "huge=True: the %llu bytes are not all in huge pages (a region has them from 2 MiB on, where the host "
                "has free ones). Leave huge out to take what there is; \"shmbroker doctor\" says what is in the way",
                static_cast<unsigned long long>(facts.length));
  return false;
}

Signature<15> create_names =
    signature("create", 1, 1,
              {"size", "name", "group", "keep", "many_writers", "replace", "uninitialised", "name_at_publish",
               "recycle", "populate", "huge", "numa", "timeout", "name_with_holders", "hugetlb"});
// No keep: only a name holds a region beyond its group, and these have none.
Signature<11> create_many_names = signature("create_many", 1, 1,
                                            {"sizes", "group", "many_writers", "uninitialised", "recycle", "populate",
                                             "huge", "timeout", "return_errors", "hugetlb", "numa"});

}  // namespace

PyObject* session_create(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  const Arguments arguments(create_names, given, count, names);
  std::uint64_t length = 0;
  shmb_create_options options{};
  options.size = sizeof(options);
  bool keep = false, many_writers = false, replace = false, uninitialised = false, at_publish = false, recycle = true;
  bool with_holders = false;
  Memory memory;
  if (!arguments || !to_number(arguments[0], "size", length) || !to_text(arguments[1], "name", options.name) ||
      !to_number(arguments[2], "group", options.group) || !to_keep(arguments[3], keep, options.keep_ns) ||
      !to_flag(arguments[4], many_writers) || !to_flag(arguments[5], replace) ||
      !to_flag(arguments[6], uninitialised) || !to_flag(arguments[7], at_publish) || !to_flag(arguments[8], recycle) ||
      !to_flag(arguments[9], memory.populate) || !memory.read(arguments[10], arguments[14], arguments[11], options) ||
      !to_wait(arguments[12], Wait::broker, options.timeout_ns) ||
      !to_name_with_holders(as<Session>(self), arguments[13], options.name, keep, options.group, with_holders))
    return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  if (keep) options.flags |= SHMB_CREATE_KEEP_GIVEN;
  if (many_writers) options.flags |= SHMB_CREATE_MANY_WRITERS;
  if (replace) options.flags |= SHMB_CREATE_REPLACE;
  if (uninitialised) options.flags |= SHMB_CREATE_UNINITIALISED;
  if (with_holders) options.flags |= SHMB_CREATE_NAME_WITH_HOLDERS;
  if (at_publish) options.flags |= SHMB_CREATE_NAME_AT_PUBLISH;
  if (!recycle) options.flags |= SHMB_CREATE_NO_RECYCLE;
  shmb_region* region = nullptr;
  shmb_error error{};
  const int status = wait_in(as<Session>(self), options.timeout_ns, [&](std::int64_t left) {
    options.timeout_ns = left;
    const int made = shmb_create(session, length, &options, &region, &error);
    if (made != SHMB_OK || furnish(region, memory, error)) return made;
    (void)shmb_release(region, SHMB_RELEASE_NO_RECYCLE | SHMB_RELEASE_UNNAME, nullptr);
    return static_cast<int>(error.status);
  });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  return make_region(as<Session>(self), region, arguments[1]);
}

PyObject* session_create_many(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  const Arguments arguments(create_many_names, given, count, names);
  shmb_create_options options{};
  options.size = sizeof(options);
  bool many_writers = false, uninitialised = false, recycle = true, return_errors = false;
  std::int64_t timeout = 0;
  Memory memory;
  if (!arguments || !to_number(arguments[1], "group", options.group) || !to_flag(arguments[2], many_writers) ||
      !to_flag(arguments[3], uninitialised) || !to_flag(arguments[4], recycle) ||
      !to_flag(arguments[5], memory.populate) || !memory.read(arguments[6], arguments[9], arguments[10], options) ||
      !to_wait(arguments[7], Wait::broker, timeout) || !to_flag(arguments[8], return_errors))
    return nullptr;
  const Ref sizes(to_items(arguments[0], "sizes", "a list or tuple of sizes"));
  if (!sizes) return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  if (many_writers) options.flags |= SHMB_CREATE_MANY_WRITERS;
  if (uninitialised) options.flags |= SHMB_CREATE_UNINITIALISED;
  if (!recycle) options.flags |= SHMB_CREATE_NO_RECYCLE;
  const auto wanted = static_cast<std::size_t>(PyTuple_Size(sizes.get()));
  std::vector<shmb_create_item> items(wanted);
  for (std::size_t i = 0; i < wanted; ++i) {
    if (!to_number(PyTuple_GetItem(sizes.get(), static_cast<Py_ssize_t>(i)), "a size", items[i].length)) return nullptr;
    items[i].options = &options;
  }
  std::vector<shmb_region*> regions(wanted);
  std::vector<int> statuses(wanted);
  shmb_error error{};
  const auto drop = [&] {
    for (shmb_region*& one : regions)
      if (one != nullptr) (void)shmb_release(std::exchange(one, nullptr), 0, nullptr);
  };
  const int status = wait_in(as<Session>(self), timeout, [&](std::int64_t left) {
    drop();  // those of a call that a signal has ended
    int made = shmb_create_many(session, items.data(), wanted, left, regions.data(), statuses.data(), &error);
    for (std::size_t i = 0; i < wanted; ++i) {
      shmb_error why{};
      if (regions[i] == nullptr || furnish(regions[i], memory, why)) continue;
      (void)shmb_release(std::exchange(regions[i], nullptr), SHMB_RELEASE_NO_RECYCLE, nullptr);
      statuses[i] = why.status;
      if (made == SHMB_OK) made = why.status, error = why;
    }
    return made;
  });
  if (status == kRaised) return drop(), nullptr;
  return regions_or_error(as<Session>(self), regions, statuses, status, error, return_errors, nullptr);
}

}  // namespace shmb::python
