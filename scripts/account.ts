/**
 * The account that the local PostgreSQL and Redis run as, and the place of their files. PostgreSQL refuses root, so
 * root starts both as `nobody`; anybody else starts them as themselves.
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

/** The account to switch to; undefined when the caller's own account will do. */
export function serviceAccount(): Account | undefined {
  if (process.getuid?.() !== 0) return undefined
  const line = readFileSync('/etc/passwd', 'utf8').match(/^nobody:[^:]*:(\d+):(\d+):/m)
  if (line === null)
    throw new Error('The account "nobody", which PostgreSQL would run as, is missing')
  return { uid: Number(line[1]), gid: Number(line[2]) }
}

/**
 * Where programs are kept that every account must be able to run: for root in the system's place, else in the
 * repository, or below DATA_DIR where the repository is somebody else's.
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
 * Makes a folder that only the service's account may enter and returns its real place. Below a
 * parent that other accounts cannot enter (a checkout in /root, say) the folder is a link to one
 * in the system's place for such data.
 */
export function serviceFolder(path: string): string {
  const account = serviceAccount()
  const folder = makeFolder(path, account !== undefined)
  chmodSync(folder, 0o700)
  if (account) chownSync(folder, account.uid, account.gid)
  return folder
}

/** A new folder for services whose data is thrown away with it. */
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
