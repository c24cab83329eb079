#pragma once

/*
 * What is saved of a job about its keys, where crunds have replicas of them (replica_uv.h): the id of the crund that serves them
 * (rounds_job.keys_at), and of the backup that has all of them (keys_backup; 0: none).
 *
 *   a store begins        -> both are saved, then it is served
 *   a backup has a copy   -> no entry is executed that it does not have; then keys_backup is saved
 *   the backup is lost    -> keys_backup = 0 is saved; until then no reply goes out that the backup does not know
 *   a crund leads         -> it serves what names it: its own store, or its copy; that is saved before
 *
 * Saves of a crund that was replaced as leader are not carried out (etcd_leader.h), so at most one crund serves a store. Without
 * replicas these functions do nothing but begin stores.
 */

struct rounds_job;
struct rounds_shell;

/* A generation was formed. */
void rounds_keys_begin(struct rounds_shell *r, const struct rounds_job *job);

/* The backup has all keys of another store. */
void rounds_keys_gain_backup(struct rounds_shell *r);

/* The backup is lost. */
void rounds_keys_lose_backup(struct rounds_shell *r);

/* This crund leads, and the jobs are read. */
void rounds_keys_lead(struct rounds_shell *r);
