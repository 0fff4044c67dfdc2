/** `npm run release` writes the files of a release, and rejects a tag that does not match. */
import { execFileSync, spawnSync } from 'node:child_process'
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { temporaryFolder } from '../../scripts/account.ts'
import { ROOT } from '../fixtures/page.ts'

const clone = temporaryFolder('botica-release-')
t.teardown(() => rmSync(clone, { recursive: true, force: true }))
const files = execFileSync('git', ['ls-files', '-z', ':!test'], { cwd: ROOT })
execFileSync('sh', ['-c', `tar c --null -T - | tar x -C '${clone}'`], { cwd: ROOT, input: files })

const git = (...args: string[]) => execFileSync('git', ['-C', clone, ...args], { stdio: 'pipe' })
const author = ['-c', 'user.name=Test', '-c', 'user.email=test@example.org']
function commit(): void {
  git('add', '--all', '--force')
  git(...author, 'commit', '--quiet', '--allow-empty', '--message', 'Change')
}
git('init', '--quiet')
commit()

function release(argument: string): string {
  const env = { ...process.env, NODE_OPTIONS: '' }
  const options = { cwd: clone, env, encoding: 'utf8' } as const
  const { stdout, stderr } = spawnSync(process.execPath, ['scripts/release.ts', argument], options)
  return stdout + stderr
}

const changelog = join(clone, 'CHANGELOG.md')
const date = (title: string) =>
  writeFileSync(changelog, readFileSync(changelog, 'utf8').replace(/^## .*$/m, title))
const { version } = JSON.parse(readFileSync(join(clone, 'package.json'), 'utf8'))
const tag = `v${version}`

t.test('rejects a tag of another version', async (t) => {
  t.match(release('v99.0.0'), `package.json has version ${version}, not that of tag v99.0.0`)
})

t.test('rejects a tag that is missing, or on another commit', async (t) => {
  t.match(release(tag), `Tag ${tag} is not on this commit`)
  git('tag', tag)
  commit()
  t.match(release(tag), `Tag ${tag} is not on this commit`)
})

t.test('rejects a version without a date in the changelog', async (t) => {
  date(`## ${version} (unreleased)`)
  commit()
  git('tag', '--force', tag)
  t.match(release(tag), `CHANGELOG.md has no date in "## ${version} (unreleased)"`)
  date('## 98.0.0')
  t.match(release(tag), `CHANGELOG.md has no section "## ${version} …"`)
})

t.test('writes sources, packages, notes and checksums', async (t) => {
  date(`## ${version} - 2026-12-01`)
  commit()
  git('tag', '--force', tag)
  release(tag)
  const folder = join(clone, 'dist/release')
  const sources = `botica-${version}.tar.gz`
  t.same(readdirSync(folder).toSorted(), ['SHA256SUMS', sources, 'notes.md', 'sbom.cdx.json'])
  execFileSync('sha256sum', ['--check', '--strict', 'SHA256SUMS'], { cwd: folder, stdio: 'pipe' })
  const listed = execFileSync('tar', ['tzf', join(folder, sources)], { encoding: 'utf8' })
  t.match(listed, `botica-${version}/server/main.ts`)
  t.match(readFileSync(join(folder, 'notes.md'), 'utf8'), /^### Added\n/)
  const { components, metadata } = JSON.parse(readFileSync(join(folder, 'sbom.cdx.json'), 'utf8'))
  const names = components.map(({ name }: Component) => name)
  t.equal(metadata.component.name, 'botica')
  t.same([...new Set(names)].sort(), installedNames(), 'lists the packages of production')
})

interface Component {
  readonly name: string
}

interface Package {
  readonly dev?: boolean
  readonly optional?: boolean
  readonly devOptional?: boolean
}

/** Returns the names of the packages that a production install has. */
function installedNames(): readonly string[] {
  const lock: { packages: Record<string, Package> } = JSON.parse(
    readFileSync(join(ROOT, 'package-lock.json'), 'utf8'),
  )
  const installed = Object.entries(lock.packages).filter(
    ([path, { dev, optional, devOptional }]) => path !== '' && !dev && !optional && !devOptional,
  )
  const names = installed.map(([path]) => path.slice(path.lastIndexOf('node_modules/') + 13))
  return [...new Set(names)].sort()
}
