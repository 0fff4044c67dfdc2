/**
 * The account and data folders of the local PostgreSQL and Redis. PostgreSQL rejects root, so root starts both as the
 * account `nobody`, and other users start them as themselves.
 */
import {
  accessSync,
  chmodSync,
  chownSync,
  constants,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  statSync,
  symlinkSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'

export interface Account {
  readonly uid: number
  readonly gid: number
}

const SYSTEM_FOLDER = '/var/lib/botica'

/** Returns the account to switch to; undefined to keep the caller's. */
export function serviceAccount(): Account | undefined {
  if (process.getuid?.() !== 0) return undefined
  const line = readFileSync('/etc/passwd', 'utf8').match(/^nobody:[^:]*:(\d+):(\d+):/m)
  if (line === null) throw new Error('PostgreSQL cannot start: the account "nobody" is missing')
  return { uid: Number(line[1]), gid: Number(line[2]) }
}

/**
 * Returns a folder for programs that every account can run: a system folder for root, otherwise in the repository, or
 * below DATA_DIR when the repository belongs to another user.
 */
export function programsFolder(): string {
  const isRoot = process.getuid?.() === 0
  const places = isRoot
    ? [SYSTEM_FOLDER]
    : [resolve(import.meta.dirname, '../.data'), resolve(process.env.DATA_DIR || '.data')].map(
        (place) => join(place, 'programs'),
      )
  const folder = places.find(canWrite)
  if (folder === undefined) {
    throw new Error(
      `The folder ${places.join(' or ')} for PostgreSQL's programs cannot be made; set DATA_DIR to a folder of yours`,
    )
  }
  if (isRoot) chmodSync(folder, 0o755)
  return folder
}

function canWrite(folder: string): boolean {
  try {
    mkdirSync(folder, { recursive: true })
    accessSync(folder, constants.W_OK)
    return true
  } catch {
    return false
  }
}

/**
 * Creates a folder only for the service's account and returns its real path. Below a parent closed to other accounts
 * (such as a checkout in /root), the folder is a link to a system folder.
 */
export function serviceFolder(path: string): string {
  const account = serviceAccount()
  const folder = makeFolder(path, account !== undefined)
  chmodSync(folder, 0o700)
  if (account) chownSync(folder, account.uid, account.gid)
  return folder
}

export function temporaryFolder(prefix: string): string {
  const folder = mkdtempSync(join(tmpdir(), prefix))
  chmodSync(folder, 0o711)
  return folder
}

function makeFolder(path: string, mustBeReachable: boolean): string {
  const exists = lstatSync(path, { throwIfNoEntry: false }) !== undefined
  if (exists) return realpathSync(path)
  const parent = dirname(path)
  if (mkdirSync(parent, { recursive: true }) !== undefined) chmodSync(parent, 0o711)
  if (!mustBeReachable || isReachable(parent)) {
    mkdirSync(path)
    return realpathSync(path)
  }
  const elsewhere = mkdtempSync(join(programsFolder(), 'data-'))
  symlinkSync(elsewhere, path)
  return elsewhere
}

function isReachable(folder: string): boolean {
  const mayEnter = (statSync(folder).mode & 0o001) !== 0
  return mayEnter && (dirname(folder) === folder || isReachable(dirname(folder)))
}
