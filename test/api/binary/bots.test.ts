import t from 'tap'
import { upload } from '../../fixtures/binaries.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'

const botica = await openBotica(t, { worker: true })
const { admin } = botica

t.test('a bot stores content, and downloads it by id and by signed address', async (t) => {
  const id = await aBot(
    botica,
    handler(`
      const bytes = new Uint8Array([0, 255, 128])
      const made = await medplum.createBinary({ data: bytes, filename: 'a.bin', contentType: 'image/png' })
      const attachment = await medplum.createAttachment({ data: 'hello', contentType: 'text/plain' })
      const back = await medplum.download('Binary/' + made.id)
      return {
        type: back.type,
        bytes: [...new Uint8Array(await back.arrayBuffer())],
        url: attachment.url,
        text: await (await medplum.download(attachment.url)).text(),
      }`),
  )
  const answer = await execute(admin, id)
  t.match(answer.body, {
    type: 'image/png',
    bytes: [0, 255, 128],
    text: 'hello',
    url: `${botica.baseUrl}storage/`,
  })
})

t.test('reports content that is too large for a bot', async (t) => {
  const { id: large } = await upload(admin, Buffer.alloc(21 * 1024 * 1024), 'image/png')
  const id = await aBot(botica, handler(`await medplum.download('Binary/${large}')`))
  const answer = await execute(admin, id)
  t.equal(answer.status, 400)
  t.match(answer.text, /larger than 20 MB/)
})

t.test('uploaded code runs like deployed code', async (t) => {
  const code = await upload(admin, handler('return 42'), 'text/javascript', '?_filename=index.js')
  const id = await aBot(botica)
  const { body: bot } = await admin.get<Untyped>(`Bot/${id}`)
  const executableCode = { contentType: 'text/javascript', url: code.url, title: 'index.js' }
  t.equal((await admin.put(`Bot/${id}`, { ...bot, executableCode })).status, 200)
  t.equal((await execute(admin, id)).text, '42')
  t.equal((await admin.post(`Bot/${id}/$deploy`, {})).status, 200, 'and is checked where it lies')
})

t.test('a Binary that a bot returns is answered with its content', async (t) => {
  const { id: stored } = await upload(admin, 'a,b', 'text/csv')
  const id = await aBot(botica, handler(`return medplum.readResource('Binary', '${stored}')`))
  const answer = await admin.get(`Bot/${id}/$execute`, { Accept: '*/*' })
  t.equal(answer.headers.get('content-type'), 'text/csv')
  t.equal(answer.text, 'a,b')
})
