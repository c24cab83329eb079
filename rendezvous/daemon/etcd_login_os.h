#pragma once

/*
 * What crund proves to etcd, from files: a user with a password, and the private key that libcurl reads by itself. They follow the rule of
 * secrets (proto/secret_os.h): a file that all users can read or change is refused, and the process is hidden from the others of
 * its user before anything is read.
 */

#include "rendezvous/etcd/etcd.h"

enum { ETCD_LOGIN_ERROR_SIZE = 512 };

struct etcd_login {
    char user[ETCD_KEY_SIZE], password[ETCD_KEY_SIZE];
};

/* The first line is USER:PASSWORD. 0 or -errno: error has a sentence. */
int etcd_login_read(struct etcd_login *ret, const char *path, char error[ETCD_LOGIN_ERROR_SIZE]);

/* Whether only the owner and the group of this file can read it. Hides the process. */
int etcd_key_check(const char *path, char error[ETCD_LOGIN_ERROR_SIZE]);
