/** A member cannot read the secrets of its client, or of a client that its bot runs as, from session details. */
import t, { type Test } from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../../fixtures/bots/bots.ts'
import type { Client } from '../../../fixtures/client.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'

const botica = await openBotica(t, { worker: true })
const { admin, adminCredentials, services, superAdmin } = botica

const SECRETS = ['planted retiring', 'planted provider', 'planted extension']
const EXTENSION = 'https://example.org/shared-secret'
const member = await botica.createMember()
for (const { id } of [member, adminCredentials]) {
  const { body } = await superAdmin.get<Raw>(`ClientApplication/${id}`)
  const [retiringSecret, clientSecret, valueString] = SECRETS
  const put = await superAdmin.put(`ClientApplication/${id}`, {
    ...body,
    retiringSecret,
    extension: [{ url: EXTENSION, valueString }],
    identityProvider: {
      authorizeUrl: 'https://idp.example/authorize',
      tokenUrl: 'https://idp.example/token',
      userInfoUrl: 'https://idp.example/userinfo',
      clientId: 'planted id',
      clientSecret,
    },
  })
  if (put.status !== 200) throw new Error(put.text)
}
services.principals.forget()

function checkSecrets(t: Test, text: string, secret: string): void {
  for (const planted of [...SECRETS, secret]) t.notMatch(text, planted)
}

t.test('returns no secret of a client to its own token', async (t) => {
  const byMember = await member.client.get<Raw>('/auth/me')
  t.equal(byMember.body.profile.id, member.id)
  t.equal(byMember.body.profile.identityProvider, undefined)
  checkSecrets(t, byMember.text, member.secret)
  const byAdmin = await admin.get<Raw>('/auth/me')
  t.equal(byAdmin.body.profile.identityProvider.clientId, 'planted id')
  checkSecrets(t, byAdmin.text, adminCredentials.secret)
})

t.test('gives a bot that runs as its caller no secret of the caller', async (t) => {
  const code = handler(`
    return { event, me: await medplum.get('auth/me'), profile: medplum.getProfile(),
      project: medplum.getProject() }`)
  const bot = await aBot(botica, code, { fields: { runAsUser: true } })
  const callers: readonly [Client, { readonly id: string; readonly secret: string }][] = [
    [member.client, member],
    [admin, adminCredentials],
  ]
  for (const [client, { id, secret }] of callers) {
    const answer = await execute(client, bot)
    t.equal(answer.status, 200)
    t.equal(answer.body.profile.id, id)
    checkSecrets(t, answer.text, secret)
  }
})
