/**
 * `npm run release -- v1.2.3` writes the files of a release to dist/release: the sources, the list of the packages that
 * users install (CycloneDX), notes from CHANGELOG.md, and SHA256SUMS. `--rehearse` does so for the version of
 * package.json without a tag. Errors: a tag, version or changelog that do not match, in one sentence.
 */
import { execFileSync } from 'node:child_process'
import { hash } from 'node:crypto'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'

const ROOT = resolve(import.meta.dirname, '..')
const FOLDER = join(ROOT, 'dist/release')
const REHEARSAL = '--rehearse'

function run(command: string, ...args: string[]): Buffer {
  return execFileSync(command, args, { cwd: ROOT, maxBuffer: 1 << 28 })
}

/** Returns the version of package.json. Errors: the tag is another one, or not on this commit. */
function requireVersion(given: string): string {
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'))
  if (given === REHEARSAL) return version
  if (given !== `v${version}`) {
    throw new Error(`package.json has version ${version}, not that of tag ${given}`)
  }
  if (!run('git', 'tag', '--points-at', 'HEAD').toString().split('\n').includes(given)) {
    throw new Error(`Tag ${given} is not on this commit`)
  }
  return version
}

/** Returns the section of the version. Errors: it is missing, or has no date; a rehearsal needs no date. */
function readNotes(version: string, isRehearsal: boolean): string {
  const sections = readFileSync(join(ROOT, 'CHANGELOG.md'), 'utf8').split(/^## /m)
  const section = sections.find((text) => text.startsWith(`${version} `))
  if (section === undefined) throw new Error(`CHANGELOG.md has no section "## ${version} …"`)
  const [title = '', ...lines] = section.trim().split('\n')
  if (!isRehearsal && !/\b\d{4}-\d\d-\d\d$/.test(title)) {
    throw new Error(`CHANGELOG.md has no date in "## ${title}"; write "## ${version} - YYYY-MM-DD"`)
  }
  return `${lines.join('\n').trim()}\n`
}

function writeRelease(version: string, notes: string): void {
  rmSync(FOLDER, { recursive: true, force: true })
  mkdirSync(FOLDER, { recursive: true })
  const name = `botica-${version}`
  const sources = `${name}.tar.gz`
  run('git', 'archive', '--format=tar.gz', `--prefix=${name}/`, '-o', join(FOLDER, sources), 'HEAD')
  writeFileSync(join(FOLDER, 'sbom.cdx.json'), listPackages())
  writeFileSync(join(FOLDER, 'notes.md'), notes)
  const sums = [sources, 'sbom.cdx.json'].map((file) => {
    return `${hash('sha256', readFileSync(join(FOLDER, file)))}  ${file}\n`
  })
  writeFileSync(join(FOLDER, 'SHA256SUMS'), sums.join(''))
}

interface Package {
  readonly dev?: boolean
  readonly optional?: boolean
  readonly devOptional?: boolean
}

interface Manifest {
  devDependencies?: unknown
  optionalDependencies?: unknown
}

/**
 * Returns the packages of a production install, as CycloneDX. `npm sbom --omit=dev` also leaves out production packages that
 * a package of the development needs, so npm reads a lockfile without the others.
 */
function listPackages(): Buffer {
  const scratch = mkdtempSync(join(tmpdir(), 'botica-packages-'))
  // npm takes the name of the folder for that of the project.
  const folder = join(scratch, 'botica')
  try {
    mkdirSync(folder)
    const manifest: Manifest = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'))
    const lock: { packages: Record<string, Package & Manifest> } = JSON.parse(
      readFileSync(join(ROOT, 'package-lock.json'), 'utf8'),
    )
    const installed = Object.entries(lock.packages).filter(
      ([, { dev, optional, devOptional }]) => !dev && !optional && !devOptional,
    )
    lock.packages = Object.fromEntries(installed)
    for (const part of [manifest, lock.packages['']]) {
      delete part?.devDependencies
      delete part?.optionalDependencies
    }
    writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest))
    writeFileSync(join(folder, 'package-lock.json'), JSON.stringify(lock))
    const options = ['sbom', '--sbom-format=cyclonedx', '--package-lock-only']
    return execFileSync('npm', options, { cwd: folder, maxBuffer: 1 << 28 })
  } finally {
    rmSync(scratch, { recursive: true, force: true })
  }
}

try {
  const [given = ''] = process.argv.slice(2)
  const version = requireVersion(given)
  writeRelease(version, readNotes(version, given === REHEARSAL))
  console.log(`dist/release has ${readdirSync(FOLDER).join(', ')}`)
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
  process.exitCode = 1
}
