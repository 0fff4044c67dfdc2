import { execFile } from 'node:child_process'
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import t, { type Test } from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEmail, findInvitedUsers, invite, mailsTo } from '../../fixtures/invites.ts'

/** The command line tool that scripts of existing projects call. */
const CLI = createRequire(import.meta.url).resolve('@medplum/cli')

const botica = await openBotica(t, { worker: 'process' })
const { admin, adminCredentials, services } = botica
const projectId = botica.project.id
const home = mkdtempSync(join(tmpdir(), 'botica-cli-'))
t.teardown(() => rmSync(home, { recursive: true, force: true }))

interface Run {
  readonly code: number
  readonly output: string
}

/** Runs the tool with a separate home and working folder, hence without other logins. */
function medplum(...words: string[]): Promise<Run> {
  const path = [home, dirname(process.execPath), '/usr/bin', '/bin'].join(':')
  const env = { PATH: path, HOME: home, MEDPLUM_BASE_URL: botica.baseUrl }
  return new Promise((resolve) => {
    execFile(process.execPath, [CLI, ...words], { cwd: home, env }, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : Number(error.code ?? 1), output: stdout + stderr })
    })
  })
}

async function succeeds(t: Test, ...words: string[]): Promise<string> {
  const { code, output } = await medplum(...words)
  t.equal(code, 0, `${words.join(' ')}: ${output}`)
  return output
}

t.test('a client signs in and stays signed in', async (t) => {
  await succeeds(
    t,
    'login',
    ...['--auth-type', 'client-credentials', '--base-url', botica.baseUrl],
    ...['--client-id', adminCredentials.id, '--client-secret', adminCredentials.secret],
  )
  const output = await succeeds(t, 'whoami')
  t.match(output, botica.project.name)
})

t.test('resources are read and written', async (t) => {
  const posted = await succeeds(
    t,
    'post',
    'Patient',
    JSON.stringify({ resourceType: 'Patient', name: [{ family: 'Commandline' }] }),
  )
  const id = /"id": "([^"]+)"/.exec(posted)?.[1]
  t.match(await succeeds(t, 'get', `Patient/${id}`), 'Commandline')
  t.match(await succeeds(t, 'get', 'Patient?family=Commandline'), id)
  const operations = [{ op: 'add', path: '/gender', value: 'female' }]
  t.match(await succeeds(t, 'patch', `Patient/${id}`, JSON.stringify(operations)), 'female')
  await succeeds(t, 'delete', `Patient/${id}`)
  t.equal((await admin.get(`Patient/${id}`)).status, 410)
})

t.test('people are invited into the current project', async (t) => {
  t.match(await succeeds(t, 'project', 'current'), projectId)
  t.match(await succeeds(t, 'project', 'list'), projectId)
  const email = anEmail()
  await succeeds(t, 'project', 'invite', '--role', 'Patient', 'Alice', 'Smith', email)
  t.match(await findInvitedUsers(services, email), [
    { project: { reference: `Project/${projectId}` } },
  ])
  t.same(await mailsTo(services, email), [])
  const staff = anEmail()
  await succeeds(t, 'project', 'invite', '--send-email', '--admin', 'Bob', 'Jones', staff)
  t.equal((await mailsTo(services, staff)).length, 1)
  const again = await medplum('project', 'invite', 'Bob', 'Jones', staff)
  t.match(again.output, 'User is already a member of this project')
})

t.test('a bot is created, saved, deployed and run', async (t) => {
  const source = 'exports.handler = async (medplum, event) => "Hello " + event.input.name'
  writeFileSync(join(home, 'greet.ts'), source)
  writeFileSync(join(home, 'greet.js'), source)
  await succeeds(t, 'bot', 'create', 'greet', projectId, 'greet.ts', 'greet.js')
  await succeeds(t, 'bot', 'save', 'greet')
  await succeeds(t, 'bot', 'deploy', 'greet')
  const found = await admin.get<Resource & { entry: { resource: Resource }[] }>('Bot?name=greet')
  const id = found.body.entry[0]?.resource.id
  const ran = await admin.post(`Bot/${id}/$execute`, JSON.stringify({ name: 'Ann' }), {
    'Content-Type': 'application/json',
  })
  t.match(ran, { status: 200, text: 'Hello Ann' })
})

t.test('a person signs in through the browser', async (t) => {
  const email = anEmail()
  const password = 'a password of some length'
  // Only a super admin may give a server-scoped person a password.
  const person = { email, password, firstName: 'Grace', lastName: 'Hopper' }
  t.equal((await invite(botica.superAdmin, projectId, person)).status, 200)
  // The tool's browser command stores the address for this test to follow.
  const browser = join(home, 'xdg-open')
  const kept = join(home, 'address')
  writeFileSync(
    browser,
    `#!/bin/sh\nprintf %s "$1" > '${kept}.part' && mv '${kept}.part' '${kept}'\n`,
  )
  chmodSync(browser, 0o755)
  const signingIn = medplum('login', '--profile', 'person')
  await until(async () => existsSync(kept), 60_000)
  const asked = new URL(readFileSync(kept, 'utf8')).searchParams
  const signed = await botica.anonymous.post<{ code: string }>('/auth/login', {
    email,
    password,
    clientId: asked.get('client_id'),
    redirectUri: asked.get('redirect_uri'),
    codeChallenge: asked.get('code_challenge'),
    codeChallengeMethod: asked.get('code_challenge_method'),
    scope: asked.get('scope'),
  })
  t.equal(signed.status, 200, signed.text)
  const back = new URL(asked.get('redirect_uri') ?? '')
  back.searchParams.set('code', signed.body.code)
  t.equal((await fetch(back)).status, 200)
  const { code, output } = await signingIn
  t.equal(code, 0, output)
  t.match(await succeeds(t, 'whoami', '--profile', 'person'), 'Grace Hopper')
})
