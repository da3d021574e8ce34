# SPDX-License-Identifier: Apache-2.0
# Toolchain file: aarch64 Linux on another machine, run by qemu. scripts/check-arm64 uses it.
#   cmake -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DFM_SYSROOT=FOLDER ...
# FM_SYSROOT is where the aarch64 packages of Debian were unpacked (usr/include, usr/lib/aarch64-linux-gnu).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FM_SYSROOT)
set(libraries ${FM_SYSROOT}/usr/lib/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${FM_SYSROOT} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# -rpath-link: the libraries need each other, and the linker must not look in the host's folders.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${libraries} -L${libraries}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-Wl,-rpath-link,${libraries} -L${libraries}")
set(CMAKE_C_FLAGS_INIT "-isystem ${FM_SYSROOT}/usr/include -isystem ${FM_SYSROOT}/usr/include/aarch64-linux-gnu")
set(ENV{PKG_CONFIG_LIBDIR} ${libraries}/pkgconfig:${FM_SYSROOT}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${FM_SYSROOT})
set(CMAKE_CROSSCOMPILING_EMULATOR
    "qemu-aarch64-static;-L;/usr/aarch64-linux-gnu;-E;LD_LIBRARY_PATH=${libraries}")
