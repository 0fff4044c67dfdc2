/** The limit of REST over HTTP: the bare SQL statements behind an empty Koa route, in a process of its own. */
import Koa from 'koa'
import pg from 'pg'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 20 })
const app = new Koa()

app.use(async (ctx) => {
  const id = ctx.path.slice(ctx.path.lastIndexOf('/') + 1)
  if (ctx.method === 'GET') {
    const { rows } = await pool.query<{ content: string }>({
      name: 'read',
      text: 'select content from bench_http where id = $1',
      values: [id],
    })
    ctx.body = rows[0]?.content
    return
  }
  const chunks: Buffer[] = []
  for await (const chunk of ctx.req) chunks.push(chunk as Buffer)
  const text = Buffer.concat(chunks).toString()
  await pool.query({
    name: 'create',
    text: 'insert into bench_http (content) values ($1) returning id',
    values: [text],
  })
  ctx.status = 201
  ctx.body = text
})

const server = app.listen(Number(process.env.PORT), '127.0.0.1', () => process.send?.('ready'))
// Its callers wait while the other side is measured.
server.keepAliveTimeout = 0
