/** A small file system for the resource versions of PostgreSQL. Linux and root only. */
import { execFile } from 'node:child_process'
import { chown, mkdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import pg from 'pg'
import { temporaryFolder } from '../../../scripts/account.ts'

const run = promisify(execFile)
/** Reserve for writes while the file system shrinks. */
const SPARE_KB = 512

interface Teardown {
  teardown(end: () => Promise<void> | void): void
}

interface SmallDisk {
  fill(): Promise<void>
  resize(mebibytes: number): Promise<void>
}

/** Moves the `version` table of the database to an in-memory file system. */
export async function moveToSmallDisk(
  t: Teardown,
  url: string,
  mebibytes: number,
): Promise<SmallDisk> {
  const folder = temporaryFolder('botica-small-disk-')
  const space = join(folder, 'space')
  await run('mount', ['-t', 'tmpfs', '-o', `size=${mebibytes}m`, 'none', folder])
  t.teardown(async () => {
    await run('umount', ['-l', folder])
    await rm(folder, { recursive: true, force: true })
  })
  await mkdir(space)
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  const [row] = (await client.query('show data_directory')).rows
  const { stdout } = await run('stat', ['-c', '%u %g', String(row.data_directory)])
  const [uid = 0, gid = 0] = stdout.split(' ').map(Number)
  await chown(folder, uid, gid)
  await chown(space, uid, gid)
  await client.query(`create tablespace small location '${space}'`)
  await client.query('alter table version set tablespace small')
  await client.end()
  return {
    async fill() {
      const { stdout } = await run('df', ['--output=used', '-k', folder])
      const used = Number(stdout.split('\n')[1])
      await run('mount', ['-o', `remount,size=${used + SPARE_KB}k`, folder])
    },
    async resize(mebibytes) {
      await run('mount', ['-o', `remount,size=${mebibytes}m`, folder])
    },
  }
}
