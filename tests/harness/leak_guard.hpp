// SPDX-License-Identifier: Apache-2.0
// Around each test case the harness compares what the process holds: descriptors, shared mappings, children, threads.
// A case that leaves anything fails the program, by name. Fixtures add what only they can see, such as a broker's
// books.
#pragma once

#include <functional>
#include <string>

namespace harness {

// Asked after each case; a text means "not as it should be". The returned number is for remove_books_check.
int add_books_check(std::function<std::string()> check);
void remove_books_check(int id);

// For a destructor that finds its object's books not empty: fails the running case, and with it the program.
void report_leak(const std::string& what);

const std::string& current_case();
int leaks_found();
bool any_case_ran();  // false: the filters of the command line match no case, a file was renamed perhaps

// Some ends are seen late: a thread that was joined leaves /proc a moment after, a ring is torn down by a kernel
// worker. Waiting costs only those who are about to fail.
inline int patience_ms = 20'000;

}  // namespace harness
