# One stage bundles the console, the libraries of bots and the documentation, one installs the packages, and the last one has only
# Node, the packages, the bundles and the code. A release replaces the base image by its digest (docs/releasing.md).
FROM node:24-bookworm-slim AS base

FROM base AS bundle
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci --omit=optional --no-audit --no-fund
COPY tsconfig.json ./
COPY scripts ./scripts
COPY shared ./shared
COPY server ./server
COPY docs ./docs
COPY examples ./examples
RUN npm run build && sh scripts/reference/site.sh

FROM base AS packages
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
# Packages come with what they need built; the steps after an install serve `npm start` alone.
RUN npm ci --omit=dev --omit=optional --ignore-scripts --no-audit --no-fund && npm run -s heroku-cleanup

FROM base
ENV NODE_ENV=production \
    MALLOC_ARENA_MAX=2 \
    DATA_DIR=/data
WORKDIR /app
RUN install -d -o node -g node /data
COPY --from=packages /app/node_modules ./node_modules
COPY package.json Procfile ./
COPY shared ./shared
COPY server ./server
COPY worker ./worker
COPY scripts ./scripts
COPY --from=bundle /app/dist ./dist
USER node
EXPOSE 8103
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
  CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.PORT ?? 8103}/livez`).then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1))"]
# SIGTERM reaches Node itself; a process has 30 s to finish what it has begun.
STOPSIGNAL SIGTERM
CMD ["node", "--import", "./shared/core/compile-cache.ts", "--max-semi-space-size=32", "--disable-warning=ExperimentalWarning", "server/main.ts"]
