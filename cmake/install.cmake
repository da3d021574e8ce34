# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: libraries, public headers (lab.h is not one), the program, a CMake package
# and a pkg-config file. find_package(fusionml) gives fusionml::shared, and fusionml::static where the packages
# that the static library needs are found too.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fusionml)

foreach(kind shared static)
    install(TARGETS fusionml_${kind} EXPORT fusionml_${kind}
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT fusionml_${kind} NAMESPACE fusionml:: FILE fusionml-${kind}.cmake DESTINATION ${package_dir})
endforeach()
if(TARGET fusionml)
    install(TARGETS fusionml RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/fusionml DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "lab.h" EXCLUDE)
install(FILES LICENSE README.md CHANGELOG.md ARCHITECTURE.md CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES models/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/models)

configure_package_config_file(cmake/fusionmlConfig.cmake.in fusionmlConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(fusionmlConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fusionmlConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/fusionmlConfigVersion.cmake
        DESTINATION ${package_dir})

file(RELATIVE_PATH FM_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/fusionml.pc.in fusionml.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fusionml.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
